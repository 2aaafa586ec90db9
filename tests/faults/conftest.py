"""The process that loads malicious artifacts, and where they are laid out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.ground import Ground
from tests.faults.watched_process import WatchedProcess


@pytest.fixture(scope="module")
def loading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedProcess]:
    """A process that loads artifacts under an audit hook."""
    found = WatchedProcess(tmp_path_factory.mktemp("loading"))
    yield found
    found.end()


@pytest.fixture
def ground(loading: WatchedProcess, tmp_path: Path) -> Iterator[Ground]:
    folder = tmp_path / "ground"
    folder.mkdir()
    made = Ground(loading, folder)
    yield made
    print(f"{made.attempts} loads")
