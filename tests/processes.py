"""Several processes that train one model on this machine, started and read."""

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
    """How a process ended: its exit code, what it has printed, and its results, if it came so far."""

    code: int
    output: str
    results: Any


def run_processes(
    root: Path, folder: Path, count: int, what: str, *arguments: object, **environment: str
) -> list[Ended]:
    """Runs a function of the probe in `count` processes at the same time; they have half an hour."""
    folder.mkdir(exist_ok=True)
    known = {
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
                env={**known, "KERAS_DISTRIBUTION_PROCESS_ID": str(index)},
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
    """Copies the vocabulary of a run into another: which of equally frequent tokens are learned differs."""
    target.mkdir(exist_ok=True)
    if (source / "tokenizer").is_dir():
        shutil.copytree(source / "tokenizer", target / "tokenizer")
    if (source / "words.txt").exists():
        shutil.copy(source / "words.txt", target)


def _ended(process: subprocess.Popen[bytes], output: Path) -> Ended:
    code, results = process.wait(1800), output.with_suffix(".json")
    return Ended(code, output.read_text(), json.loads(results.read_text()) if results.exists() else None)


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
