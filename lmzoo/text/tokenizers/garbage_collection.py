"""Pausing of Python's garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused_collection() -> Iterator[None]:
    """Pause Python's garbage collector during a block that creates many long-lived objects.

    The collector would search every object of the process again and again. With several threads it is never left off:
    the thread that turned it off turns it on again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
