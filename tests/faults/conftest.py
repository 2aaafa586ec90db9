"""The process that saves and loads artifacts, and where malicious ones are laid out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.ground import Ground
from tests.faults.watched_process import WatchedProcess


@pytest.fixture(scope="session")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedProcess]:
    """A process that saves and loads artifacts; it takes seconds to start."""
    found = WatchedProcess(tmp_path_factory.mktemp("watched"))
    yield found
    found.end()


@pytest.fixture
def ground(process: WatchedProcess, tmp_path: Path) -> Iterator[Ground]:
    folder = tmp_path / "ground"
    folder.mkdir()
    made = Ground(process, folder)
    process.ask("call", function="nothing", path=str(folder))
    yield made
    print(f"{made.attempts} loads")
