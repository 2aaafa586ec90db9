"""A small server for exported models: TensorFlow Serving's REST predict API, for trying and testing.

https://www.tensorflow.org/tfx/serving/api_rest. It answers on one machine what TensorFlow Serving would; it has no
batching, no limits and no encryption. The models need tensorflow and tensorflow_text, and nothing of lmzoo.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lmzoo.serving.warmup import WARMUP_FILE, read_warmup

_PATH = re.compile(r"/v1/models/(?P<name>[^/:]+)(/versions/(?P<version>\d+))?(?P<verb>/metadata|:predict)?")
_LARGEST_BODY = 64 * 2**20  # bytes


class RequestError(ValueError):
    """A request that cannot be answered; `status` says why."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


class ModelServer(ThreadingHTTPServer):
    """Serves the versions of one model. It answers their requests to warm up with before it takes others.

    Args:
        folder: holds a SavedModel in a folder for each version, named by a whole number.
        port: int, 0 for one that is free; `server_address` says which.
        host: address to listen at; by default this machine's own, which others cannot reach.

    Raises:
        FileNotFoundError: if there is no version in the folder.
        OSError: if the port is taken.

    Example:

    ```python
    import json, threading, urllib.request
    import lmzoo
    from lmzoo.serving.rest import ModelServer

    lmzoo.models.MaskedLM.from_preset("bert_nano_en_uncased").export("serving/words/1", verbose=False)
    with ModelServer("serving/words", port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://localhost:{server.server_address[1]}/v1/models/words:predict"
        body = json.dumps({"inputs": {"text": ["She opened the [MASK]."]}}).encode()
        answer = json.load(urllib.request.urlopen(urllib.request.Request(url, body)))
        server.shutdown()
    answer["outputs"]["token"]  # [[[..., ..., ..., ..., ...]]]
    ```
    """

    daemon_threads = True

    def __init__(self, folder: str | Path, port: int = 8501, host: str = "localhost") -> None:
        import tensorflow as tf
        import tensorflow_text  # noqa: F401 - registers the ops of tokenizers

        folder = Path(folder).expanduser().resolve()
        if (folder / "saved_model.pb").exists():
            raise FileNotFoundError(f"{folder} is a version of a model: serve the folder above it, {folder.parent}.")
        self.folders = {
            int(path.parent.name): path.parent
            for path in folder.glob("*/saved_model.pb")
            if path.parent.name.isdecimal()
        }
        if not folder.is_dir():
            raise FileNotFoundError(f"There is no folder {folder}.")
        if not self.folders:
            raise FileNotFoundError(
                f"{folder} holds no version of a model. Export one to {folder / '1'}: a version's name is a number."
            )
        self.name = folder.name
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise OSError(f"Cannot listen at {host}, port {port}: {error.strerror}. Choose another port.") from None
        try:
            # `loaded` keeps what the signatures refer to.
            self.loaded = {version: tf.saved_model.load(str(path)) for version, path in self.folders.items()}
            for version, path in self.folders.items():
                if (path / WARMUP_FILE).exists():
                    for name, inputs in read_warmup(path):
                        self.signature(version, name)(**{key: tf.constant(values) for key, values in inputs.items()})
        except BaseException:
            self.server_close()
            raise

    def signature(self, version: int | None, name: str) -> Any:
        """The function of a signature."""
        version = max(self.loaded) if version is None else version
        if version not in self.loaded:
            there = ", ".join(map(str, sorted(self.loaded)))
            raise RequestError(
                f"There is no version {version} of {self.name}; there are {there}.", HTTPStatus.NOT_FOUND
            )
        signatures = self.loaded[version].signatures
        if name not in signatures:
            raise RequestError(f"There is no signature {name!r}; there are {', '.join(signatures)}.")
        return signatures[name]

    def predict(self, version: int | None, request: Any) -> dict[str, Any]:
        """The answer to a request.

        Args:
            version: int, or None for the newest.
            request: an object with `instances` (rows) or `inputs` (columns), and maybe `signature_name`.

        Returns:
            An object with `predictions`, one for each row, or with `outputs`, the columns.

        Raises:
            RequestError: saying what was wrong.
        """
        if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
            raise RequestError('The body must be an object with either "instances" or "inputs".')
        function = self.signature(version, request.get("signature_name") or "serving_default")
        specs = function.structured_input_signature[1]
        by_row = "instances" in request
        columns = _columns(request["instances"], list(specs)) if by_row else request["inputs"]
        if not isinstance(columns, dict):
            columns = {next(iter(specs)): columns} if len(specs) == 1 else {}
        if columns.keys() != specs.keys():
            raise RequestError(f"Inputs must be {', '.join(specs)}; got {', '.join(columns) or 'none of them'}.")
        inputs = {name: _tensor(name, columns[name], spec) for name, spec in specs.items()}
        if len({len(tensor) for tensor in inputs.values()}) > 1:
            counts = ", ".join(f"{len(tensor)} of {name}" for name, tensor in sorted(inputs.items()))
            raise RequestError(f"All inputs must have as many rows; got {counts}.")
        outputs = function(**inputs)
        found = {name: _plain(name, value.numpy().tolist()) for name, value in outputs.items()}
        if not by_row:
            return {"outputs": found if len(found) > 1 else next(iter(found.values()))}
        rows = [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
        return {"predictions": rows if len(found) > 1 else next(iter(found.values()))}

    def metadata(self, version: int | None) -> dict[str, Any]:
        """Names, types and shapes of a version's signatures, as TensorFlow Serving describes them."""
        from tensorflow.core.protobuf import saved_model_pb2

        self.signature(version, "serving_default")
        version = max(self.loaded) if version is None else version
        saved = saved_model_pb2.SavedModel.FromString((self.folders[version] / "saved_model.pb").read_bytes())
        signatures = {
            name: {"inputs": _described(s.inputs), "outputs": _described(s.outputs), "method_name": s.method_name}
            for name, s in saved.meta_graphs[0].signature_def.items()
        }
        return {
            "model_spec": {"name": self.name, "signature_name": "", "version": str(version)},
            "metadata": {"signature_def": {"signature_def": signatures}},
        }

    def example(self) -> dict[str, Any]:
        """A request to the newest version that `predict` answers."""
        folder = self.folders[max(self.folders)]
        requests = read_warmup(folder) if (folder / WARMUP_FILE).exists() else ()
        for name, inputs in requests:
            if name == "serving_default":
                row = {key: _plain(key, values[:1].tolist())[0] for key, values in inputs.items()}
                return {"instances": [row if len(row) > 1 else next(iter(row.values()))]}
        return {"instances": ["Some text."]}


def _described(tensors: Any) -> dict[str, Any]:
    """Types and shapes of a signature's inputs or outputs, `TensorInfo` by name, as JSON has them."""
    from tensorflow.core.framework import types_pb2

    result = {}
    for name, info in tensors.items():
        axes = [{"size": str(axis.size), "name": axis.name} for axis in info.tensor_shape.dim]
        shape = {"dim": axes, "unknown_rank": info.tensor_shape.unknown_rank}
        result[name] = {"dtype": types_pb2.DataType.Name(info.dtype), "tensor_shape": shape, "name": info.name}
    return result


def _columns(instances: Any, names: list[str]) -> dict[str, Any]:
    """Rows as columns; a row is an object, or the value of the only input."""
    if not isinstance(instances, list) or not instances:
        raise RequestError('"instances" must be a list that is not empty.')
    rows = [row if isinstance(row, dict) and row.keys() != {"b64"} else {names[0]: row} for row in instances]
    if len(names) > 1 and any(row.keys() != set(names) for row in rows):
        raise RequestError(f"Each instance must be an object with {', '.join(names)}.")
    if any(row.keys() != rows[0].keys() for row in rows):
        raise RequestError("All instances must have the same inputs.")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _tensor(name: str, values: Any, spec: Any) -> Any:
    import tensorflow as tf

    try:
        tensor = tf.constant(_decoded(values) if spec.dtype == tf.string else values, spec.dtype)
    except (TypeError, ValueError) as error:
        if "non-rectangular" in str(error):
            filler = '""' if spec.dtype == tf.string else "0"
            raise RequestError(f"Rows of `{name}` must be equally long: fill shorter ones up with {filler}.") from None
        raise RequestError(f"`{name}` must be {spec.dtype.name} with shape {spec.shape}: {error}") from None
    if not spec.shape.is_compatible_with(tensor.shape) or 0 in tensor.shape[1:]:
        raise RequestError(f"`{name}` must have shape {spec.shape}, got {tensor.shape}.")
    return tensor


def _decoded(values: Any) -> Any:
    """Strings as bytes; `{"b64": ...}` stands for bytes that are no UTF-8."""
    if isinstance(values, list):
        return [_decoded(value) for value in values]
    if isinstance(values, dict) and values.keys() == {"b64"}:
        try:
            return base64.b64decode(values["b64"], validate=True)
        except (binascii.Error, TypeError) as error:
            raise ValueError(f"base64 cannot be read: {error}") from None
    if not isinstance(values, str):
        raise TypeError(f"expected a string, got {values!r:.40}")
    return values.encode("utf-8", "replace")


def _reason(error: Exception) -> str:
    """What TensorFlow says is wrong, without the names of nodes."""
    around = ("Graph execution error", "Detected at node", "<stack traces unavailable>", "\t [[")
    lines = [line for line in str(error).splitlines() if line and not line.startswith(around)]
    return "The model cannot take this: " + " ".join(lines)[:2000]


def _plain(name: str, value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, list):
        return [_plain(name, entry) for entry in value]
    if isinstance(value, bytes):
        if name.endswith("_bytes"):
            return {"b64": base64.b64encode(value).decode()}
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer
    # What the base class answers itself, such as to a PUT.
    error_content_type = "application/json"
    error_message_format = '{"error": "%(message)s"}'

    def do_GET(self) -> None:
        """State and metadata."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Predictions."""
        self._answer(self._predict)

    def _answer(self, find: Any) -> None:
        try:
            status, answer = HTTPStatus.OK, find()
        except RequestError as error:
            status, answer = error.status, {"error": str(error)}
        except Exception as error:  # the model's own, such as wrong shapes of ids
            status, answer = HTTPStatus.BAD_REQUEST, {"error": _reason(error)}
        body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _parts(self, *verbs: str | None) -> int | None:
        """The version that a path asks for; None for the newest."""
        found = _PATH.fullmatch(self.path)
        if found is not None and found["verb"] not in verbs and found["name"] == self.server.name:
            method = "POST" if found["verb"] == ":predict" else "GET"
            raise RequestError(f"{self.path} takes {method}, not {self.command}.", HTTPStatus.METHOD_NOT_ALLOWED)
        if found is None or found["name"] != self.server.name:
            there = f"/v1/models/{self.server.name}[/versions/N][:predict|/metadata]"
            raise RequestError(f"There is nothing at {self.path}; there is {there}.", HTTPStatus.NOT_FOUND)
        return None if found["version"] is None else int(found["version"])

    def _get(self) -> dict[str, Any]:
        version = self._parts(None, "/metadata")
        if self.path.endswith("/metadata"):
            return self.server.metadata(version)
        self.server.signature(version, "serving_default")
        versions = sorted(self.server.loaded, reverse=True) if version is None else [version]
        fine = {"error_code": "OK", "error_message": ""}
        return {"model_version_status": [{"version": str(v), "state": "AVAILABLE", "status": fine} for v in versions]}

    def _predict(self) -> dict[str, Any]:
        body, version = self._body(), self._parts(":predict")  # clients may not listen before they have sent it
        if (encoding := self.headers.get("Content-Encoding", "identity")) != "identity":
            raise RequestError(f"The body must be plain JSON, not {encoding}.", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        try:
            request = json.loads(body)
        except ValueError as error:
            raise RequestError(f"The body is not JSON: {error}") from None
        return self.server.predict(version, request)

    def _body(self) -> bytes:
        """What was sent, at once or in chunks (RFC 9112, section 7.1)."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self._read(int(self.headers.get("Content-Length") or 0))
        parts = [b""]
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self._read(size, sum(map(len, parts))))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _read(self, size: int, there: int = 0) -> bytes:
        if size + there > _LARGEST_BODY:
            raise RequestError(f"The body is larger than {_LARGEST_BODY} bytes.", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return self.rfile.read(size)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: a line for each request would hide what matters."""
