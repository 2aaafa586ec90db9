"""Temporary attributes of objects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def set_temporary_attributes(values: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set attributes of objects in the block, then restore the old values; attributes that were missing become None.

    Args:
        values: triples of an object, the name of an attribute, and its temporary value.
    """
    values = list(values)
    old_values = [(owner, name, getattr(owner, name, None)) for owner, name, _ in values]
    try:
        for owner, name, value in values:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in old_values:
            setattr(owner, name, value)
