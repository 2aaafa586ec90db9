"""A directory for malicious artifacts, which checks after each load that nothing ran and no file changed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.faults.artifact_kinds import KINDS
from tests.faults.watched_process import Outcome, WatchedProcess

MAX_SECONDS = 20
MAX_MEGABYTES = 150
USER_ERRORS = ("PresetError", "ValueError", "TypeError", "MissingTokenizerError")


class Sandbox:
    """A directory in which a test writes one artifact after another and loads it.

    Attributes:
        process: The process that loads them.
        folder: The directory.
        attempts: Number of loads so far.
    """

    def __init__(self, process: WatchedProcess, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.attempts = 0

    def copy(self, kind: str) -> Path:
        """Copy an intact artifact of a kind into the sandbox and return its path."""
        original = self.process.folder / f"whole {kind}"
        source = original / KINDS[kind].path
        target = self.folder / KINDS[kind].path
        if not original.exists():
            original.mkdir()
            for function in ("save", "remember"):  # the first load imports modules, which takes memory
                outcome = self.process.ask(function, kind=kind, folder=str(original), version=0)
                assert outcome.ended == "done", outcome
        if target.is_dir():
            shutil.rmtree(target)
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, target)
        return target

    def load(self, function: str, path: Path) -> Outcome:
        """Load an artifact with a function of `tests.faults.loads`; check that nothing ran and no file changed."""
        self.attempts += 1
        sizes_before = file_sizes(self.folder)
        outcome = self.process.ask("call", function=function, path=str(path))
        assert outcome.ended in ("done", "error"), (function, outcome)
        assert outcome.error != "AssertionError", (function, outcome)
        assert not outcome.events, (function, outcome)
        assert file_sizes(self.folder) == sizes_before, (function, outcome)
        assert outcome.seconds <= MAX_SECONDS, (function, outcome)
        assert outcome.megabytes <= MAX_MEGABYTES, (function, outcome)
        if function != "with_keras":  # Keras unpacks the file itself and may leave a directory
            assert self.process.leftovers() == [], (function, outcome)
        return outcome

    def assert_refused(self, function: str, path: Path, message: str = "") -> None:
        """Load an artifact and check that it fails with an error that a user can read."""
        outcome = self.load(function, path)
        assert outcome.ended == "error", (function, outcome)
        assert outcome.error in USER_ERRORS, (function, outcome)
        assert re.search(message, outcome.message), (function, message, outcome)


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size of each file below a directory by its path; -1 for what is not a file."""
    return {
        str(path): path.lstat().st_size if path.is_file() else -1
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }
