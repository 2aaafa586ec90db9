"""Training and prediction on another backend, in a child process, since a process has only one backend."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
from typing import Any

import keras
import numpy as np

from lmzoo.tasks import Task
from lmzoo.tasks.base.examples import BatchOptions
from lmzoo.tasks.inputs import read_inputs
from lmzoo.testing.tiny import tiny_examples

_PROGRAM = """
import importlib, json, sys, traceback
replies, sys.stdout = sys.stdout, sys.stderr
import keras, numpy as np
for line in sys.stdin:
    folder, *modules = json.loads(line)
    try:
        for module in modules:
            importlib.import_module(module)
        from lmzoo.testing.other_backend import train_and_predict
        np.savez(f"{folder}/results.npz", **train_and_predict(keras.saving.load_model(f"{folder}/task.keras")))
        reply = ""
    except Exception:
        reply = traceback.format_exc()
    keras.backend.clear_session()
    print(json.dumps(reply), file=replies, flush=True)
"""


@functools.cache
def _start_backend_process(backend: str) -> subprocess.Popen[str]:
    """Start a process with another backend; later calls return the same process, since starting one is slow."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)
    return process


def ask_other_backend(backend: str, request: list[str]) -> None:
    """Train and predict with a saved task in a process that uses another backend.

    Args:
        backend: "tensorflow" or "jax".
        request: path of a directory that contains `task.keras`, followed by names of modules to import before loading
            the task. The results of `train_and_predict` are written to `results.npz` in the same directory.

    Raises:
        AssertionError: If the process ends or raises an error.
    """
    process = _start_backend_process(backend)
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps(request), file=process.stdin, flush=True)
    reply = process.stdout.readline()
    assert reply, f"the process of {backend} ended"
    assert json.loads(reply) == "", f"in {backend}: {json.loads(reply)}"


def train_and_predict(task: Task) -> dict[str, np.ndarray]:
    """Take a training step, and return its inputs and losses and the predictions before and after it, by name.

    The step is compiled or eager, whichever starts faster on the backend. `check_task_training` compares both kinds.
    """
    task.compile(keras.optimizers.SGD(0.5), run_eagerly=not compiles_each_operation())
    x, y = tiny_examples(task, 8)
    options = BatchOptions(len(x), "given", (0, 0), training=True)  # like the first step of `fit`
    features, *_ = next(iter(task.batches(read_inputs(x, y), options)[0].batches()))
    results: dict[str, Any] = {"input": features, "prediction before the step": task.predict(x, verbose=0)}
    history = task.fit(x, y, batch_size=len(x), shuffle=False, verbose=0).history
    results |= {name: np.array(values) for name, values in history.items() if name.endswith("loss")}
    results["prediction after the step"] = task.predict(x, verbose=0)
    return {", ".join(map(str, path)): np.asarray(array) for path, array in keras.tree.flatten_with_path(results)}


def compiles_each_operation() -> bool:
    """Return whether eager code compiles each operation separately, as on JAX, and so starts slowly."""
    return keras.backend.backend() == "jax"
