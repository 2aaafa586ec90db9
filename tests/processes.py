"""A helper that starts several processes on this machine, which train one model, and collects their results."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

PROBE = "tests.parallel.processes_probe"


@dataclass
class Ended:
    """The exit code of a process, its output, and its results if it has written any."""

    code: int
    output: str
    results: Any


def run_processes(
    root: Path, folder: Path, count: int, what: str, *arguments: object, **environment: str
) -> list[Ended]:
    """Run a function of the probe in `count` processes at the same time, for at most half an hour each."""
    folder.mkdir(exist_ok=True)
    shared_environment = {
        **os.environ,
        "KERAS_BACKEND": keras.backend.backend(),
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": f"127.0.0.1:{free_port()}",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(count),
        **environment,
    }
    processes = []
    for index in range(count):
        output = folder / f"{index}.txt"
        output.with_suffix(".json").unlink(missing_ok=True)
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", PROBE, output.with_suffix(".json"), what, *map(str, arguments)],
                cwd=root,
                env={**shared_environment, "KERAS_DISTRIBUTION_PROCESS_ID": str(index)},
                stdout=file,
                stderr=file,
            )
        processes.append((process, output))
    try:
        return [_ended(process, output) for process, output in processes]
    finally:
        for process, _ in processes:
            process.kill()


def copy_vocabulary(source: Path, target: Path) -> None:
    """Copy the vocabulary of a run into another run, since the choice among equally frequent tokens varies."""
    target.mkdir(exist_ok=True)
    if (source / "tokenizer").is_dir():
        shutil.copytree(source / "tokenizer", target / "tokenizer")
    if (source / "words.txt").exists():
        shutil.copy(source / "words.txt", target)


def _ended(process: subprocess.Popen[bytes], output: Path) -> Ended:
    code = process.wait(1800)
    results = output.with_suffix(".json")
    return Ended(code, output.read_text(), json.loads(results.read_text()) if results.exists() else None)


def free_port() -> int:
    """Return a port on which no program listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
