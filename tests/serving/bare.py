"""A process with tensorflow and tensorflow_text but without lmzoo, which runs exported models."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_BARE = """
import sys
for name in ("lmzoo", "keras_hub", "keras_nlp"):
    sys.modules[name] = None
import json
from pathlib import Path
import tensorflow as tf
import tensorflow_text

loaded = {}
def load(folder):
    loaded[folder] = loaded.get(folder) or tf.saved_model.load(folder)
    return loaded[folder].signatures
def answer(folder, signature, inputs):
    outputs = load(folder)[signature](**{name: tensor(values) for name, values in inputs.items()})
    return {name: plain(x.numpy().tolist()) for name, x in outputs.items()}
def warm_up(folder):
    from tensorflow_serving.apis import prediction_log_pb2
    rows = []
    for record in tf.data.TFRecordDataset(str(Path(folder, "assets.extra", "tf_serving_warmup_requests"))):
        request = prediction_log_pb2.PredictionLog.FromString(record.numpy()).predict_log.request
        name = request.model_spec.signature_name
        outputs = load(folder)[name](**{key: tf.make_ndarray(tensor) for key, tensor in request.inputs.items()})
        rows.append([name, len(next(iter(outputs.values())))])
    return rows
def tensor(x):
    return tf.constant(decoded(x)) if strings(x) else tf.constant(x, tf.int32)
def strings(x):
    return strings(x[0]) if isinstance(x, list) else isinstance(x, str)
def decoded(x):
    return bytes.fromhex(x) if isinstance(x, str) else [decoded(y) for y in x]
def plain(x):
    return x.decode() if isinstance(x, bytes) else [plain(y) for y in x] if isinstance(x, list) else x

for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps({"answer": answer, "warm_up": warm_up}[name](*arguments)), flush=True)
"""


class BareProcess:
    """Process that keeps each SavedModel which it has loaded; a `with` block ends it."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def __enter__(self) -> BareProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)
        self._errors.close()

    def ask(self, folder: Path, signature: str, **inputs: Any) -> dict[str, Any]:
        """Return the outputs for texts, bytes, nested lists of them, or ids."""
        return self._call("answer", str(folder), signature, {name: _to_hex(values) for name, values in inputs.items()})

    def warm_up(self, folder: Path) -> list[tuple[str, int]]:
        """Run the warm-up requests in the folder and return their signatures and numbers of rows."""
        return [(name, rows) for name, rows in self._call("warm_up", str(folder))]

    def _call(self, *request: Any) -> Any:
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            self._errors.seek(0)
            raise AssertionError(self._errors.read()[-3000:])
        return json.loads(line)


def _to_hex(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_to_hex(part) for part in value]
    return value if isinstance(value, int) else (value.encode() if isinstance(value, str) else value).hex()
