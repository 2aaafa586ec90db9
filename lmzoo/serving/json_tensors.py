"""Tensors from JSON and back, in the form of TensorFlow Serving's REST API."""

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
    """A request that cannot be answered; `status` is that of the HTTP response."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


def rows_to_columns(instances: Json, names: list[str]) -> dict[str, Json]:
    """Turn `instances`, a list of objects or of the values of the only input, into a list of values for each input.

    Raises:
        RequestError: if the instances do not have the same inputs.
    """
    if not isinstance(instances, list) or not instances:
        raise RequestError('"instances" must be a list that is not empty.')
    rows = [row if isinstance(row, dict) and row.keys() != {"b64"} else {names[0]: row} for row in instances]
    if any(row.keys() != rows[0].keys() for row in rows):
        raise RequestError("All instances must have the same inputs.")
    return {name: [row[name] for row in rows] for name in rows[0]}


def to_tensor(name: str, values: Json, spec: tf.TensorSpec) -> tf.Tensor:
    """Return the tensor of the input `name`, of the dtype and shape in `spec`, from lists of strings or numbers.

    `{"b64": ...}` stands for bytes that are not UTF-8, and lone surrogates become U+FFFD.

    Raises:
        RequestError: if dtype or shape are others.
    """
    import tensorflow as tf

    rank = 254 if spec.shape.rank is None else spec.shape.rank  # TensorFlow's limit, beyond which it ends the process
    try:
        tensor = tf.constant(_checked(values, spec.dtype, rank), spec.dtype)
    except (TypeError, ValueError) as error:
        if "non-rectangular" in str(error):
            filler = '""' if spec.dtype == tf.string else "0"
            raise RequestError(f"Rows of `{name}` must be equally long: fill shorter ones up with {filler}.") from None
        raise RequestError(f"`{name}` must be {spec.dtype.name} with shape {spec.shape}: {error}") from None
    if not spec.shape.is_compatible_with(tensor.shape) or 0 in tensor.shape[1:]:
        raise RequestError(f"`{name}` must have shape {spec.shape}, got {tensor.shape}.")
    return tensor


def _checked(values: Json, dtype: tf.DType, rank: int) -> object:
    """Values as TensorFlow needs them: strings as bytes, lists of at most this rank, no numbers that overflow."""
    if isinstance(values, list):
        if rank == 0:
            raise ValueError("there are too many brackets")
        return [_checked(value, dtype, rank - 1) for value in values]
    if dtype != "string":
        if dtype.is_integer and isinstance(values, int) and not dtype.min <= values <= dtype.max:
            raise ValueError(f"{values!s:.20} is out of range")
        return values
    if isinstance(values, dict) and values.keys() == {"b64"}:
        try:
            return base64.b64decode(str(values["b64"]), validate=True)
        except ValueError as error:
            raise ValueError(f"base64 cannot be read: {error}") from None
    if not isinstance(values, str):
        raise TypeError(f"expected a string, got {values!r:.40}")
    return _SURROGATE.sub("\ufffd", values).encode()


def to_json(name: str, value: Values) -> Json:
    """Turn the values of the output `name` into values that JSON can hold."""
    if isinstance(value, list):
        return [to_json(name, entry) for entry in value]
    if isinstance(value, bytes):
        if name.endswith("_bytes"):
            return {"b64": base64.b64encode(value).decode()}
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
