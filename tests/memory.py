"""What a piece of code takes of the computer's memory, in whatever library it takes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def memory_grows_less_than(limit: int) -> Iterator[None]:
    """Asserts that the process never has `limit` bytes more than at the start."""
    start_peak()
    before = peak_memory()
    yield
    assert peak_memory() - before < limit


def start_peak() -> None:
    """Forgets the peak so far."""
    descriptor = os.open("/proc/self/clear_refs", os.O_WRONLY)  # as no `open` of Python's does: it makes no file
    os.write(descriptor, b"5")
    os.close(descriptor)


def peak_memory() -> int:
    """The most bytes that the process has had since `start_peak`."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024
