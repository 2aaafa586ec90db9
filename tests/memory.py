"""What a piece of code takes of the computer's memory, in whatever library it takes it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def memory_grows_less_than(limit: int) -> Iterator[None]:
    """Asserts that the process never has `limit` bytes more than at the start."""
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = _peak()
    yield
    assert _peak() - before < limit


def _peak() -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024
