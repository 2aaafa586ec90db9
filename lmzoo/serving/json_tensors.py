"""Conversion between tensors and JSON in the format of TensorFlow Serving's REST API."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import tensorflow as tf

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | float | None"
Values: TypeAlias = "list[Values] | bytes | str | float"  # as numpy's `tolist` returns them
_SURROGATE = re.compile("[\ud800-\udfff]")


class RequestError(ValueError):
    """An invalid request; `status` is the HTTP status of the response."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


def rows_to_columns(instances: Json, names: list[str]) -> dict[str, Json]:
    """Convert a list of instances (rows) into a list of values for each input (columns).

    Args:
        instances: list of objects with a value for each input or, for a single input, list of its values.
        names: list of str, names of the inputs.

    Raises:
        RequestError: If `instances` is not a list or is empty, or the instances have different inputs.
    """
    if not isinstance(instances, list) or not instances:
        raise RequestError('"instances" must be a list that is not empty.')
    rows = [row if isinstance(row, dict) and row.keys() != {"b64"} else {names[0]: row} for row in instances]
    if any(row.keys() != rows[0].keys() for row in rows):
        raise RequestError("All instances must have the same inputs.")
    return {name: [row[name] for row in rows] for name in rows[0]}


def to_tensor(name: str, values: Json, spec: tf.TensorSpec) -> tf.Tensor:
    """Convert nested lists of strings or numbers into the tensor of an input.

    `{"b64": ...}` encodes bytes that are not UTF-8. Lone surrogates become U+FFFD.

    Args:
        name: str, name of the input for error messages.
        values: nested lists of strings or numbers, or a single value, from JSON.
        spec: dtype and shape of the input.

    Raises:
        RequestError: If the values have the wrong dtype or shape.
    """
    import tensorflow as tf

    # 254 is TensorFlow's limit, beyond which the process would crash.
    rank = 254 if spec.shape.rank is None else spec.shape.rank
    try:
        tensor = tf.constant(_check_values(values, spec.dtype, rank), spec.dtype)
    except _InvalidValueError as error:
        place = "".join(f"[{index}]" for index in error.indices)
        raise RequestError(
            f"`{name}` must be {spec.dtype.name} with shape {spec.shape}: {error} (`{name}{place}`)."
        ) from None
    except (TypeError, ValueError) as error:
        if "non-rectangular" in str(error):
            filler = '""' if spec.dtype == tf.string else "0"
            raise RequestError(f"Rows of `{name}` must be equally long: fill shorter ones up with {filler}.") from None
        raise RequestError(f"`{name}` must be {spec.dtype.name} with shape {spec.shape}: {error}") from None
    if not spec.shape.is_compatible_with(tensor.shape) or 0 in tensor.shape[1:]:
        raise RequestError(f"`{name}` must have shape {spec.shape}, got {tensor.shape}.")
    return tensor


class _InvalidValueError(ValueError):
    """Error about a JSON value.

    Attributes:
        indices: indices of the value in nested lists.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.indices: list[int] = []


def _check_values(values: Json, dtype: tf.DType, rank: int) -> object:
    """Check the depth of nested JSON values and the range of integers, and convert values of string inputs to bytes.

    Args:
        values: nested lists of strings or numbers, or a single value, from JSON.
        dtype: dtype of the input.
        rank: int, maximum depth of the lists.

    Raises:
        _InvalidValueError: If lists are nested more than `rank` deep, an integer overflows, base64 is invalid, or a
            value of a string input is not a string.
    """
    if isinstance(values, list):
        if rank == 0:
            raise _InvalidValueError("there are too many brackets")
        checked_values = []
        for index, value in enumerate(values):
            try:
                checked_values.append(_check_values(value, dtype, rank - 1))
            except _InvalidValueError as error:
                error.indices.insert(0, index)
                raise
        return checked_values
    if dtype != "string":
        if dtype.is_integer and isinstance(values, int) and not dtype.min <= values <= dtype.max:
            raise _InvalidValueError(f"{values!s:.20} is out of range")
        return values
    if isinstance(values, dict) and values.keys() == {"b64"}:
        try:
            return base64.b64decode(str(values["b64"]), validate=True)
        except ValueError as error:
            raise _InvalidValueError(f"base64 cannot be read: {error}") from None
    if not isinstance(values, str):
        raise _InvalidValueError(f"expected a string, got {values!r:.40}")
    return _SURROGATE.sub("\ufffd", values).encode()


def to_json(name: str, value: Values) -> Json:
    """Convert the values of the output `name` to JSON.

    Bytes become text, or base64 if `name` ends in "_bytes"; NaN and infinite numbers become strings.
    """
    if isinstance(value, list):
        return [to_json(name, entry) for entry in value]
    if isinstance(value, bytes):
        if name.endswith("_bytes"):
            return {"b64": base64.b64encode(value).decode()}
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
