"""Pausing Python's garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused_collection() -> Iterator[None]:
    """Pause Python's garbage collector while many objects are made, none of which is garbage.

    It would search every object of the process again and again. No thread leaves the collector off: the one that turns
    it off turns it on.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
