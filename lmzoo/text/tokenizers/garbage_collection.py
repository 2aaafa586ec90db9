"""Pausing of Python's garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def pause_collection() -> Iterator[None]:
    """Pause Python's garbage collector during a block that creates many long-lived objects.

    Otherwise, the collector would traverse all objects of the process again and again. Several threads may pause it at
    the same time: the thread that disabled it enables it again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
