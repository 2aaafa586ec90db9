"""The versions of an exported model, loaded, and their answers in the form of TensorFlow Serving's REST API.

https://www.tensorflow.org/tfx/serving/api_rest. The models need tensorflow and tensorflow_text, and nothing of lmzoo.
"""

from __future__ import annotations

import base64
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from lmzoo.serving.warmup import WARMUP_FILE, read_warmup

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.protobuf.meta_graph_pb2 import TensorInfo

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | float | None"
_SURROGATE = re.compile("[\ud800-\udfff]")


class RequestError(ValueError):
    """A request that cannot be answered.

    Args:
        message: what was wrong.
        status: of the HTTP response.
    """

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


class Signature(Protocol):
    """A function of a SavedModel, which takes its inputs by name."""

    structured_input_signature: tuple[tuple[()], dict[str, tf.TensorSpec]]
    structured_outputs: dict[str, tf.TensorSpec]

    def __call__(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """The outputs by name."""


class ModelVersion:
    """One version of a model, loaded and warmed up.

    Args:
        folder: of the SavedModel.

    Raises:
        ValueError: if it cannot be loaded.
    """

    def __init__(self, folder: Path) -> None:
        import tensorflow as tf
        import tensorflow_text  # noqa: F401 - registers the ops of tokenizers

        self.folder = folder
        try:
            self._model = tf.saved_model.load(str(folder))  # keeps what the signatures refer to
            self.signatures: Mapping[str, Signature] = self._model.signatures
            self._requests = list(read_warmup(folder)) if (folder / WARMUP_FILE).exists() else []
            for name, inputs in self._requests:
                self.signatures[name](**{key: tf.constant(values) for key, values in inputs.items()})
        except Exception as error:  # TensorFlow's, protobuf's and the system's
            raise ValueError(f"{folder} cannot be loaded: {_reason(error)}") from error

    def predict(self, request: Json, max_texts: int | None = None) -> dict[str, Json]:
        """The answer to a request.

        Args:
            request: an object with `instances` (rows) or `inputs` (columns), and optionally `signature_name`.
            max_texts: how many texts, or rows of ids, an input may have; None for any number.

        Returns:
            An object with `predictions`, one for each row, or with `outputs`, the columns.

        Raises:
            RequestError: saying what was wrong.
        """
        import tensorflow as tf

        if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
            raise RequestError('The body must be an object with either "instances" or "inputs".')
        name = request.get("signature_name") or "serving_default"
        if not isinstance(name, str) or name not in self.signatures:
            raise RequestError(f"There is no signature {name!r}; there are {', '.join(self.signatures)}.")
        signature = self.signatures[name]
        specs = signature.structured_input_signature[1]
        by_row = "instances" in request
        columns = _columns(request["instances"], list(specs)) if by_row else request["inputs"]
        if not isinstance(columns, dict):
            columns = {next(iter(specs)): columns} if len(specs) == 1 else {}
        if columns.keys() != specs.keys():
            raise RequestError(f"Inputs must be {', '.join(specs)}; got {', '.join(columns) or 'none of them'}.")
        inputs = {name: _tensor(name, columns[name], spec) for name, spec in specs.items()}
        for name, tensor in inputs.items():
            count = int(tf.size(tensor)) if tensor.dtype == tf.string else len(tensor)
            if max_texts is not None and count > max_texts:
                raise RequestError(
                    f"A request may have {max_texts} texts, and `{name}` has {count}: send them in parts.",
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                )
        if len({len(tensor) for tensor in inputs.values()}) > 1:
            counts = ", ".join(f"{len(tensor)} of {name}" for name, tensor in sorted(inputs.items()))
            raise RequestError(f"All inputs must have as many rows; got {counts}.")
        try:
            outputs = signature(**inputs)
        except tf.errors.OpError as error:  # such as ids that the model does not have
            raise RequestError(f"The model cannot take this: {_reason(error)}") from None
        found = {name: _plain(name, value.numpy().tolist()) for name, value in outputs.items()}
        if not by_row:
            return {"outputs": found if len(found) > 1 else next(iter(found.values()))}
        rows = [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
        return {"predictions": rows if len(found) > 1 else next(iter(found.values()))}

    def metadata(self) -> dict[str, Json]:
        """Names, types and shapes of the signatures, as TensorFlow Serving describes them."""
        from tensorflow.core.protobuf import saved_model_pb2

        saved = saved_model_pb2.SavedModel.FromString((self.folder / "saved_model.pb").read_bytes())
        signatures: dict[str, Json] = {
            name: {"inputs": _described(s.inputs), "outputs": _described(s.outputs), "method_name": s.method_name}
            for name, s in saved.meta_graphs[0].signature_def.items()
        }
        return {"signature_def": {"signature_def": signatures}}

    def example(self) -> dict[str, Json]:
        """A request that `predict` answers."""
        for name, inputs in self._requests:
            if name == "serving_default":
                row = {key: _plain(key, values[:1].tolist()[0]) for key, values in inputs.items()}
                return {"instances": [row if len(row) > 1 else next(iter(row.values()))]}
        return {"instances": ["Some text."]}


class ModelVersions:
    """The versions of a model that are in a folder, each a SavedModel in a folder that is named by a whole number.

    Args:
        folder: holds the versions.
        name: of the model; by default the folder's.

    Attributes:
        name: str.
        loaded: the versions by their numbers; never empty, and replaced as a whole.

    Raises:
        FileNotFoundError: if there is no version in the folder.
        ValueError: if one cannot be loaded.
    """

    def __init__(self, folder: str | Path, name: str | None = None) -> None:
        self._folder = Path(folder).expanduser().resolve()
        self.name = name or self._folder.name
        if (self._folder / "saved_model.pb").exists():
            raise FileNotFoundError(
                f"{self._folder} is a version of a model: serve the folder above it, {self._folder.parent}."
            )
        if not self._folder.is_dir():
            raise FileNotFoundError(f"There is no folder {self._folder}.")
        if not (found := self._found()):
            raise FileNotFoundError(
                f"{self._folder} holds no version of a model. Export one to {self._folder / '1'}: a version's name is "
                "a number."
            )
        self.loaded = {number: ModelVersion(path) for number, path in found.items()}
        self._refused: dict[int, set[tuple[str, int, int]]] = {}

    def get(self, number: int | None = None) -> ModelVersion:
        """A version; by default the one with the highest number.

        Raises:
            RequestError: if there is none with this number.
        """
        loaded = self.loaded
        number = max(loaded) if number is None else number
        if number not in loaded:
            there = ", ".join(map(str, sorted(loaded)))
            raise RequestError(f"There is no version {number} of {self.name}; there are {there}.", HTTPStatus.NOT_FOUND)
        return loaded[number]

    def refresh(self) -> None:
        """Loads versions that are new in the folder, and lets go of those that are gone from it.

        A version that cannot be loaded, because it is still being copied, for instance, is a warning. It is tried again
        when its files have changed.
        """
        found = self._found()
        loaded = {number: version for number, version in self.loaded.items() if number in found}
        for number, path in found.items():
            state = {(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in path.rglob("*")}
            if number not in loaded and self._refused.get(number) != state:
                try:
                    loaded[number] = ModelVersion(path)
                except ValueError as error:
                    self._refused[number] = state
                    warnings.warn(str(error), stacklevel=2)
        self.loaded = loaded or self.loaded

    def _found(self) -> dict[int, Path]:
        folders = [path.parent for path in self._folder.glob("*/saved_model.pb")]
        return {int(folder.name): folder for folder in folders if folder.name.isdecimal()}


def _described(tensors: Mapping[str, TensorInfo]) -> dict[str, Json]:
    """Types and shapes of a signature's inputs or outputs in TensorFlow Serving's JSON."""
    from tensorflow.core.framework import types_pb2

    result: dict[str, Json] = {}
    for name, info in tensors.items():
        axes: list[Json] = [{"size": str(axis.size), "name": axis.name} for axis in info.tensor_shape.dim]
        shape: dict[str, Json] = {"dim": axes, "unknown_rank": info.tensor_shape.unknown_rank}
        result[name] = {"dtype": types_pb2.DataType.Name(info.dtype), "tensor_shape": shape, "name": info.name}
    return result


def _columns(instances: Json, names: list[str]) -> dict[str, Json]:
    """Rows as columns; a row is an object, or the value of the only input."""
    if not isinstance(instances, list) or not instances:
        raise RequestError('"instances" must be a list that is not empty.')
    rows = [row if isinstance(row, dict) and row.keys() != {"b64"} else {names[0]: row} for row in instances]
    if len(names) > 1 and any(row.keys() != set(names) for row in rows):
        raise RequestError(f"Each instance must be an object with {', '.join(names)}.")
    if any(row.keys() != rows[0].keys() for row in rows):
        raise RequestError("All instances must have the same inputs.")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _tensor(name: str, values: Json, spec: tf.TensorSpec) -> tf.Tensor:
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
    """What TensorFlow makes a tensor of: strings as bytes, no deeper lists than `rank`, no numbers that overflow.

    `{"b64": ...}` stands for bytes that are not UTF-8, and lone surrogates become U+FFFD.
    """
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


def _reason(error: Exception) -> str:
    """What TensorFlow says is wrong, without the names of nodes."""
    around = ("Graph execution error", "Detected at node", "<stack traces unavailable>", "\t [[")
    lines = [line for line in str(error).splitlines() if line and not line.startswith(around)]
    return " ".join(lines)[:2000]


def _plain(name: str, value: Any) -> Json:
    """What JSON can hold."""
    if isinstance(value, list):
        return [_plain(name, entry) for entry in value]
    if isinstance(value, bytes):
        if name.endswith("_bytes"):
            return {"b64": base64.b64encode(value).decode()}
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
