"""The program that `WatchedProcess` starts: `python -m tests.faults.worker <socket>`.

A request is a line of JSON that names a function below and its arguments. The answer is also a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from tests.faults.failing_disk import hand_over_calls
from tests.memory import peak_memory, start_peak

_connection = socket.socket(fileno=int(sys.argv[1]))
try:
    hand_over_calls(_connection)  # before there are other threads
except OSError:
    _connection.sendall(b"-")

import keras  # noqa: E402
import numpy as np  # noqa: E402

import lmzoo  # noqa: E402
from tests.faults import audit  # noqa: E402
from tests.faults.artifact_kinds import KINDS  # noqa: E402

_PACKAGE = str(Path(lmzoo.__file__).parent)
_expected: dict[tuple[str, int], dict[str, Any]] = {}


def nothing() -> None:
    """Do nothing: the request starts the process if none runs."""


def save(kind: str, folder: str, version: int) -> None:
    """Save an artifact."""
    KINDS[kind].save(Path(folder), version)


def save_in_a_fork(kind: str, folder: str, version: int) -> None:
    """Save an artifact in a child process, which can be killed without losing this one."""
    child = os.fork()
    if not child:
        try:
            KINDS[kind].save(Path(folder), version)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def remember(kind: str, folder: str, version: int) -> None:
    """Load an intact artifact for later comparisons."""
    _expected[kind, version] = KINDS[kind].load(Path(folder))


def load(kind: str, folder: str) -> list[int]:
    """Load an artifact and return the versions that it equals."""
    content = KINDS[kind].load(Path(folder))
    return [
        version
        for (expected_kind, version), expected in _expected.items()
        if expected_kind == kind and _equal(content, expected)
    ]


def call(function: str, path: str) -> None:
    """Call a function of `tests.faults.loads` in the directory of a path, under the audit hook."""
    from tests.faults import loads

    with contextlib.chdir(Path(path).parent), audit.recording():
        getattr(loads, function)(path)


def _equal(actual: dict[str, Any], expected: dict[str, Any]) -> bool:
    if actual.keys() != expected.keys():
        return False
    pairs = ((np.asarray(actual[name]), np.asarray(value)) for name, value in expected.items())
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    start_peak()
    memory_before = peak_memory()
    try:
        with warnings.catch_warnings(record=True) as caught_warnings:
            warnings.simplefilter("always")
            value = globals()[request.pop("do")](**request)
        answer = {
            "ended": "done",
            "value": value,
            "message": "\n".join(str(warning.message) for warning in caught_warnings),
        }
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        answer = {
            "ended": "error",
            "error": type(error).__name__,
            "message": str(error),
            "ours": frames[-1].filename.startswith(_PACKAGE)
            and type(error).__module__.startswith(("lmzoo", "builtins")),
            "trace": "".join(traceback.format_list(frames[-5:])),
        }
        error.__traceback__ = None
    return {**answer, "megabytes": (peak_memory() - memory_before) / 1e6, "events": audit.take_events()}


def main() -> None:
    keras.config.disable_traceback_filtering()
    with _connection.makefile("rwb") as lines:
        lines.write(b"ready\n")
        lines.flush()
        for line in lines:
            lines.write(json.dumps(_answer(json.loads(line))).encode() + b"\n")
            lines.flush()


if __name__ == "__main__":
    main()
