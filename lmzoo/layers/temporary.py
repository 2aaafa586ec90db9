"""Attributes that objects have for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def temporary_attributes(values: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Give objects attributes in this context; afterwards they have the former ones, or None where there was none.

    Args:
        values: an object, the name of its attribute, and the value.
    """
    values = list(values)
    former = [(item, name, getattr(item, name, None)) for item, name, _ in values]
    try:
        for item, name, value in values:
            setattr(item, name, value)
        yield
    finally:
        for item, name, value in former:
            setattr(item, name, value)
