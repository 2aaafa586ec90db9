"""Kills workers of Ray while they work."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def _has_job(process: Path) -> bool:
    return (process / "cmdline").read_bytes().startswith(b"ray::_Worker.do")  # its title


def is_second(process: Path) -> bool:
    """Whether it is the second one of a group."""
    return b"KERAS_DISTRIBUTION_PROCESS_ID=1" in (process / "environ").read_bytes().split(b"\0")


def kill_a_worker(
    running: subprocess.Popen[str], seconds: float = 240.0, wanted: Callable[[Path], bool] = _has_job
) -> int:
    """Kills a worker of a command with SIGKILL as soon as it has a job, or is `wanted`, and returns its id."""
    end = time.monotonic() + seconds
    while running.poll() is None and time.monotonic() < end:
        for process in _descendants(running.pid):
            try:
                found = wanted(Path(f"/proc/{process}"))
            except OSError:  # it has ended
                continue
            if found:
                os.kill(process, signal.SIGKILL)
                return process
        time.sleep(0.01)
    raise AssertionError(f"no worker was seen at work; the command ended with {running.poll()}")


def _descendants(pid: int) -> set[int]:
    """The processes that a process has started, and those that these have started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        found |= new
    return found
