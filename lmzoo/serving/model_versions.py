"""Loaded versions of an exported model, with predictions in the format of TensorFlow Serving's REST API.

See https://www.tensorflow.org/tfx/serving/api_rest for the format. The models need tensorflow and tensorflow_text, but
not lmzoo.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lmzoo.serving.json_tensors import Json, RequestError, rows_to_columns, to_json, to_tensor
from lmzoo.serving.warmup import WARMUP_FILE, read_warmup

if TYPE_CHECKING:
    import tensorflow as tf


class Signature(Protocol):
    """A function of a SavedModel with named inputs and outputs."""

    structured_input_signature: tuple[tuple[()], dict[str, tf.TensorSpec]]
    structured_outputs: dict[str, tf.TensorSpec]

    def __call__(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Compute the outputs, by name, from the inputs."""


class ModelVersion:
    """A version of a model, loaded from a SavedModel and warmed up with the requests that it contains, if any.

    Args:
        folder: path of the SavedModel.

    Raises:
        ValueError: If the SavedModel cannot be loaded.
    """

    def __init__(self, folder: Path) -> None:
        import tensorflow as tf
        import tensorflow_text  # noqa: F401 - registers the ops of tokenizers

        self.folder = folder
        try:
            self._model = tf.saved_model.load(str(folder))  # keeps the resources of the signatures alive
            self.signatures: Mapping[str, Signature] = self._model.signatures
            self._requests = list(read_warmup(folder)) if (folder / WARMUP_FILE).exists() else []
            for name, inputs in self._requests:
                self.signatures[name](**{key: tf.constant(values) for key, values in inputs.items()})
        except Exception as error:  # errors of TensorFlow, protobuf and the system
            raise ValueError(f"{folder} cannot be loaded: {_get_reason(error)}") from error

    def predict(self, request: Json, max_texts: int | None = None) -> dict[str, Json]:
        """Return the predictions for a request.

        Args:
            request: object with `instances` (rows) or `inputs` (columns), and optionally `signature_name`.
            max_texts: int, maximum number of texts, or rows of ids, in an input; None for no limit.

        Returns:
            An object with a list of `predictions` for rows, or with the `outputs` as columns.

        Raises:
            RequestError: If the request is invalid, or an input has more than `max_texts` texts.
        """
        import tensorflow as tf

        if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
            raise RequestError('The body must be an object with either "instances" or "inputs".')
        signature_name = request.get("signature_name") or "serving_default"
        if not isinstance(signature_name, str) or signature_name not in self.signatures:
            raise RequestError(f"There is no signature {signature_name!r}; there are {', '.join(self.signatures)}.")
        signature = self.signatures[signature_name]
        specs = signature.structured_input_signature[1]
        by_row = "instances" in request
        columns = rows_to_columns(request["instances"], list(specs)) if by_row else request["inputs"]
        if not isinstance(columns, dict):
            columns = {next(iter(specs)): columns} if len(specs) == 1 else {}
        if columns.keys() != specs.keys():
            raise RequestError(f"Inputs must be {', '.join(specs)}; got {', '.join(columns) or 'none of them'}.")
        inputs = {name: to_tensor(name, columns[name], spec) for name, spec in specs.items()}
        for name, tensor in inputs.items():
            num_texts = int(tf.size(tensor)) if tensor.dtype == tf.string else len(tensor)
            if max_texts is not None and num_texts > max_texts:
                raise RequestError(
                    f"A request may have {max_texts} texts, and `{name}` has {num_texts}: send them in parts.",
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                )
        if len({len(tensor) for tensor in inputs.values()}) > 1:
            row_counts = ", ".join(f"{len(tensor)} of {name}" for name, tensor in sorted(inputs.items()))
            raise RequestError(f"All inputs must have as many rows; got {row_counts}.")
        try:
            outputs = signature(**inputs)
        except tf.errors.OpError as error:  # such as ids beyond the vocabulary
            raise RequestError(f"The model cannot take this: {_get_reason(error)}") from None
        json_outputs = {name: to_json(name, value.numpy().tolist()) for name, value in outputs.items()}
        if not by_row:
            return {"outputs": json_outputs if len(json_outputs) > 1 else next(iter(json_outputs.values()))}
        rows = [dict(zip(json_outputs, row, strict=True)) for row in zip(*json_outputs.values(), strict=True)]
        return {"predictions": rows if len(json_outputs) > 1 else next(iter(json_outputs.values()))}

    def metadata(self) -> dict[str, Json]:
        """Return the inputs and outputs of all signatures, with types and shapes, in TensorFlow Serving's format."""
        from google.protobuf.json_format import MessageToDict
        from tensorflow.core.protobuf import saved_model_pb2

        saved_model = saved_model_pb2.SavedModel.FromString((self.folder / "saved_model.pb").read_bytes())
        options = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
        signatures = {}
        for name, signature in saved_model.meta_graphs[0].signature_def.items():
            signatures[name] = MessageToDict(signature, **options)
            del signatures[name]["defaults"]  # default inputs, which exported models do not have
        return {"signature_def": {"signature_def": signatures}}

    def example(self) -> dict[str, Json]:
        """Return an example request for `predict`."""
        for name, inputs in self._requests:
            if name == "serving_default":
                row = {key: to_json(key, values[:1].tolist()[0]) for key, values in inputs.items()}
                return {"instances": [row if len(row) > 1 else next(iter(row.values()))]}
        return {"instances": ["Some text."]}


class ModelVersions:
    """The loaded versions of a model in a directory.

    Args:
        folder: path of a directory with the versions, SavedModels in subdirectories named by integers.
        name: str, name of the model; by default the name of the directory.

    Attributes:
        name: str, name of the model.
        loaded: dict from version numbers to `ModelVersion`; never empty, and replaced instead of changed in place.

    Raises:
        FileNotFoundError: If the directory does not exist, contains no version, or is itself a version.
        NotADirectoryError: If `folder` is a file.
        ValueError: If a version cannot be loaded.
    """

    def __init__(self, folder: str | Path, name: str | None = None) -> None:
        self._folder = Path(folder).expanduser().resolve()
        self.name = name or self._folder.name
        if (self._folder / "saved_model.pb").exists():
            raise FileNotFoundError(
                f"{self._folder} is a version of a model: serve the folder above it, {self._folder.parent}."
            )
        if self._folder.is_file():
            raise NotADirectoryError(f"{self._folder} is a file. Export the model to a folder (`lmzoo export`).")
        if not self._folder.is_dir():
            raise FileNotFoundError(f"There is no folder {self._folder}.")
        if not (version_paths := list_versions(self._folder)):
            if model_folders := sorted(
                folder for folder in self._folder.iterdir() if folder.is_dir() and list_versions(folder)
            ):
                raise FileNotFoundError(
                    f"{self._folder} holds no version of a model, but {model_folders[0]} does: serve that."
                )
            raise FileNotFoundError(
                f"{self._folder} holds no version of a model. Export one to {self._folder / '1'}: a version's name is "
                "a number."
            )
        self.loaded = {number: ModelVersion(path) for number, path in version_paths.items()}
        self._refused: dict[int, set[tuple[str, int, int]]] = {}

    def get(self, number: int | None = None) -> ModelVersion:
        """Return the loaded version `number`, by default the version with the highest number.

        Raises:
            RequestError: If version `number` is not loaded.
        """
        loaded_versions = self.loaded
        number = max(loaded_versions) if number is None else number
        if number not in loaded_versions:
            available = ", ".join(map(str, sorted(loaded_versions)))
            raise RequestError(
                f"There is no version {number} of {self.name}; there are {available}.", HTTPStatus.NOT_FOUND
            )
        return loaded_versions[number]

    def refresh(self) -> None:
        """Load new versions in the directory, and unload deleted versions.

        A version that cannot be loaded, for example because it is still being copied, causes a warning, and is retried
        when its files have changed. If the directory contains no version that can be loaded, no version is unloaded.
        """
        version_paths = list_versions(self._folder)
        loaded_versions = {number: version for number, version in self.loaded.items() if number in version_paths}
        for number, path in version_paths.items():
            if number in loaded_versions:
                continue
            fingerprint = {(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in path.rglob("*")}
            if self._refused.get(number) != fingerprint:
                try:
                    loaded_versions[number] = ModelVersion(path)
                except ValueError as error:
                    self._refused[number] = fingerprint
                    warnings.warn(str(error), stacklevel=2)
        self.loaded = loaded_versions or self.loaded


def list_versions(folder: Path) -> dict[int, Path]:
    """Return the paths of the versions in a directory by number: SavedModels in subdirectories named by integers."""
    folders = [file.parent for file in folder.glob("*/saved_model.pb")]
    return {int(version_path.name): version_path for version_path in folders if version_path.name.isdecimal()}


def _get_reason(error: Exception) -> str:
    """Return the message of a TensorFlow error without tracebacks and names of nodes."""
    noise = ("Graph execution error", "Detected at node", "<stack traces unavailable>", "\t [[")
    lines = [line for line in str(error).splitlines() if line and not line.startswith(noise)]
    return " ".join(lines)[:2000]
