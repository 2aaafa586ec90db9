"""Where malicious artifacts are laid out and loaded, and what must not have happened afterwards."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.faults.artifact_kinds import KINDS
from tests.faults.watched_process import Outcome, WatchedProcess

SECONDS, MEGABYTES = 20, 150


class Ground:
    """A folder in which one artifact after another is laid out and loaded.

    Attributes:
        folder: it.
        attempts: how many artifacts were loaded.
    """

    def __init__(self, process: WatchedProcess, folder: Path) -> None:
        self.process, self.folder, self.attempts = process, folder, 0

    def copy(self, kind: str) -> Path:
        """A fresh artifact of a kind."""
        whole, target = self.process.folder / f"whole {kind}", self.folder / KINDS[kind].path
        if not whole.exists():
            whole.mkdir()
            for do in ("save", "remember"):  # a load for the first time takes memory for what it imports
                outcome = self.process.ask(do, kind=kind, folder=str(whole), version=0)
                assert outcome.ended == "done", outcome
        if target.is_dir():
            shutil.rmtree(target)
        copy = shutil.copytree if (whole / KINDS[kind].path).is_dir() else shutil.copy
        copy(whole / KINDS[kind].path, target)
        return target

    def load(self, how: str, path: Path) -> Outcome:
        """Loads an artifact by a function of `tests.faults.loads`; nothing may run, and no file may change."""
        self.attempts += 1
        before = listing(self.folder)
        outcome = self.process.ask("call", function=how, path=str(path))
        assert outcome.ended in ("done", "error"), (how, outcome)
        assert outcome.error != "AssertionError", (how, outcome)
        assert not outcome.events, (how, outcome)
        assert listing(self.folder) == before, (how, outcome)
        assert outcome.seconds <= SECONDS, (how, outcome)
        assert outcome.megabytes <= MEGABYTES, (how, outcome)
        if how != "with_keras":  # it unpacks the file itself, and may leave a folder
            assert self.process.leftovers() == [], (how, outcome)
        return outcome

    def refused(self, how: str, path: Path, message: str = "") -> None:
        """The same, and it must fail with an error that a user can read."""
        outcome = self.load(how, path)
        assert outcome.ended == "error", (how, outcome)
        assert outcome.error in ("PresetError", "ValueError", "TypeError", "MissingTokenizerError"), (how, outcome)
        assert re.search(message, outcome.message), (how, message, outcome)


def listing(folder: Path) -> dict[str, int]:
    """Names and sizes of all files."""
    return {
        str(path): path.lstat().st_size if path.is_file() else -1
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }
