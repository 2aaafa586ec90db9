"""What a piece of code takes of the computer's memory, in whatever library it takes it."""

from __future__ import annotations

import contextlib
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
    with Path("/proc/self/clear_refs").open("r+b", buffering=0) as file:  # which is there: nothing is made
        file.write(b"5")


def peak_memory() -> int:
    """The most bytes that the process has had since `start_peak`."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024
