"""Fixtures of the tests of data."""

from __future__ import annotations

import pytest


@pytest.fixture
def write_file(tmp_path):
    """Return a function that writes text or bytes into a file and returns its path."""

    def write_file(name, content, encoding="utf-8"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
        return path

    return write_file
