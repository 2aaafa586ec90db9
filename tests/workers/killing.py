"""Kills workers of Ray while they work."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

_WORKING = b"ray::_Worker.do"  # the title of a process that does a job


def kill_a_worker(running: subprocess.Popen[str], seconds: float = 240.0) -> int:
    """Kills a worker of a command with SIGKILL as soon as it has a job, and returns its id."""
    end = time.monotonic() + seconds
    while running.poll() is None and time.monotonic() < end:
        for process in _descendants(running.pid):
            try:
                working = Path(f"/proc/{process}/cmdline").read_bytes().startswith(_WORKING)
            except OSError:  # it has ended
                continue
            if working:
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
