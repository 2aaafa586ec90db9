"""Killing of Ray's workers while they work."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def _has_job(process: Path) -> bool:
    return (process / "cmdline").read_bytes().startswith(b"ray::_Worker.do")  # the title of the process


def is_second(process: Path) -> bool:
    """Return whether a process is the second of its group."""
    return b"KERAS_DISTRIBUTION_PROCESS_ID=1" in (process / "environ").read_bytes().split(b"\0")


def kill_a_worker(
    running: subprocess.Popen[str], seconds: float = 240.0, wanted: Callable[[Path], bool] = _has_job
) -> int:
    """Kill a worker of a command with SIGKILL as soon as it has a job, or `wanted` holds, and return its id."""
    end = time.monotonic() + seconds
    while running.poll() is None and time.monotonic() < end:
        for process in _descendants(running.pid):
            try:
                is_wanted = wanted(Path(f"/proc/{process}"))
            except OSError:  # the process has ended
                continue
            if is_wanted:
                os.kill(process, signal.SIGKILL)
                return process
        time.sleep(0.01)
    raise AssertionError(f"no worker was seen at work; the command ended with {running.poll()}")


def _descendants(pid: int) -> set[int]:
    """Return the processes that a process has started, directly or indirectly."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    descendants, children = set(), {pid}
    while children:
        children = {child for child, parent in parents.items() if parent in children}
        descendants |= children
    return descendants
