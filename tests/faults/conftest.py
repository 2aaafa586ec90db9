"""Fixtures: a watched process that saves and loads artifacts, and a sandbox for malicious ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.sandbox import Sandbox
from tests.faults.watched_process import WatchedProcess


@pytest.fixture(scope="session")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedProcess]:
    """Share one watched process among all tests, as it takes seconds to start."""
    watched = WatchedProcess(tmp_path_factory.mktemp("watched"))
    yield watched
    watched.end()


@pytest.fixture
def sandbox(process: WatchedProcess, tmp_path: Path) -> Iterator[Sandbox]:
    folder = tmp_path / "sandbox"
    folder.mkdir()
    process.ask("call", function="nothing", path=str(folder))
    sandbox = Sandbox(process, folder)
    yield sandbox
    print(f"{sandbox.attempts} loads")
