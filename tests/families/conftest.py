"""What several files of these tests share."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest


@pytest.fixture(scope="module")
def unallocated() -> Iterator[None]:
    """Variables that a module's tests make have shapes but never values, so that any size can be built."""
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        keras.utils.clear_session()  # else the next model to be built would bring these to life, too
