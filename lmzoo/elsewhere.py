"""The part of `lmzoo.testing` that runs in another process, since a process has one backend."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys

_ELSEWHERE = """
import importlib, json, sys, traceback
replies, sys.stdout = sys.stdout, sys.stderr
import keras, numpy as np
for line in sys.stdin:
    folder, *modules = json.loads(line)
    try:
        for module in modules:
            importlib.import_module(module)
        from lmzoo.testing import _train_and_predict
        np.savez(f"{folder}/results.npz", *_train_and_predict(keras.saving.load_model(f"{folder}/task.keras")))
        reply = ""
    except Exception:
        reply = traceback.format_exc()
    keras.backend.clear_session()
    print(json.dumps(reply), file=replies, flush=True)
"""


@functools.cache
def _elsewhere(backend: str) -> subprocess.Popen[str]:
    """A process of another backend, which takes long to start and so is kept."""
    process = subprocess.Popen(
        [sys.executable, "-c", _ELSEWHERE],
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)
    return process


def ask_elsewhere(backend: str, request: list[str]) -> None:
    """Trains and predicts with a saved task in a process of another backend.

    Args:
        backend: "tensorflow" or "jax".
        request: a folder with `task.keras`, into which `results.npz` goes, and modules to import before loading it.
    """
    process = _elsewhere(backend)
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps(request), file=process.stdin, flush=True)
    reply = process.stdout.readline()
    assert reply, f"the process of {backend} ended"
    assert json.loads(reply) == "", f"in {backend}: {json.loads(reply)}"
