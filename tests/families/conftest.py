"""Fixtures for several files of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest


@pytest.fixture(scope="module")
def unallocated() -> Iterator[None]:
    """Give the variables of a module's models shapes but no values, so that models of any size can be built."""
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        keras.utils.clear_session()  # else the next model would also allocate these variables
