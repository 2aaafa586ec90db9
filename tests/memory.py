"""Peak memory of the process, including memory that libraries allocate outside of Python."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def memory_grows_less_than(limit: int) -> Iterator[None]:
    """Check that the block never uses `limit` bytes more than the process used before."""
    start_peak()
    initial = peak_memory()
    yield
    assert peak_memory() - initial < limit


def start_peak() -> None:
    """Reset the peak."""
    descriptor = os.open("/proc/self/clear_refs", os.O_WRONLY)  # Python's `open` would create the file
    os.write(descriptor, b"5")
    os.close(descriptor)


def peak_memory() -> int:
    """Return the largest number of bytes that the process has used since `start_peak`."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024
