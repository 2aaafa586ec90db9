"""A disk that fails while artifacts are saved, and processes that are killed: the old one is left, or the new one."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import keras
import pytest

from tests.faults.artifact_kinds import KINDS
from tests.faults.failing_disk import ALL, Fault, call_fails, disk_full, disk_gone, file_too_large, killed
from tests.faults.watched_process import Outcome, WatchedProcess

# How often a process is killed while it saves, of 68 times; those in `SHORT` are what `make test` does, too.
KILLS = {
    "keras": 8, "preset": 8, "state": 8, "corpus": 8, "hf": 6, "keras_hub": 6, "bilm": 5, "training": 6, "tf1": 2,
    "prepared corpus": 5, "saved model": 1, "onnx": 1, "litert": 1, "arpa": 3, "arpa.gz": 2,
    "sentence transformers": 3,
}  # fmt: skip
# How many calls of the system lie between two faults: a run of training writes six states, an export takes seconds, a
# preset has many small files.
EVERY = {"training": 100, "saved model": 100, "preset": 30, "onnx": 20, "litert": 20}
SHORT = ["keras", "preset", "state", "corpus"]
THEIRS = {"NOTES.md": "mine", ".git/HEAD": "ref"}  # what users keep in a preset's or a checkpoint's folder
# HDF5 ends the process, at once or later, if a disk that had room is full by the time when Keras closes the weights.
CRASHES = ["preset"]
HAS_THEIRS = ["preset", "hf", "sentence transformers", "keras_hub", "bilm", "tf1", "saved model"]


class Saving:
    """A kind of artifact, saved over an older one on a disk that fails.

    Attributes:
        counts: of the calls that a save takes.
        tried: how many faults happened, by name.
    """

    def __init__(self, process: WatchedProcess, name: str, folder: Path) -> None:
        self.process, self.name, self.kind = process, name, KINDS[name]
        self.folders = [folder / "old", folder / "new"]
        self.work = folder / "work"
        self.tried: dict[str, int] = {}
        self.known = 0  # the process that knows what to compare with
        old, new = self.folders
        old.mkdir(parents=True)
        if not self.kind.resumes:
            self.do("save", old, version=0)
        for path, text in self.theirs.items():
            (old / self.kind.path / path).parent.mkdir(exist_ok=True)
            (old / self.kind.path / path).write_text(text)
        self.reset()
        self.do("save", self.work, version=1)
        assert process.disk is not None, "the process was killed"
        self.counts = dict(process.disk.counts)
        shutil.copytree(self.work, new)

    @property
    def theirs(self) -> dict[str, str]:
        return THEIRS if self.name in HAS_THEIRS else {}

    def reset(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.folders[0], self.work)

    def do(self, what: str, folder: Path, **arguments: int) -> Outcome:
        outcome = self.process.ask(what, kind=self.name, folder=str(folder), **arguments)
        assert outcome.ended == "done", (self.name, outcome)
        return outcome

    def versions(self) -> list[int]:
        """The versions that the artifact equals; none where a part of it says that it is one."""
        outcome = self.load()
        if outcome.ended == "crashed" and self.name in CRASHES:
            outcome = self.load()
        assert outcome.ended == "done" or self.kind.resumes, (self.name, outcome)
        return outcome.value or []

    def load(self) -> Outcome:
        self.process.ask("nothing")
        if self.known != self.process.number:
            for version, folder in enumerate(self.folders):
                if version or not self.kind.resumes:
                    self.do("remember", folder, version=version)
            self.known = self.process.number
        return self.process.ask("load", kind=self.name, folder=str(self.work))

    def under(self, fault: Fault) -> None:
        """Saves while the disk fails, and checks what is there afterwards."""
        self.reset()
        do = "save_in_a_fork" if fault.error is None and self.kind.forks else "save"
        outcome = self.process.ask(do, fault, kind=self.name, folder=str(self.work), version=1)
        ends = ("done", "error", "killed", *(["crashed"] if self.name in CRASHES else []))
        assert outcome.ended in ends, (self.name, fault, outcome)
        if self.process.disk is not None and not self.process.disk.hit:
            return  # the save took fewer calls this time
        self.tried[fault.name] = self.tried.get(fault.name, 0) + 1
        where = (self.name, fault, outcome, listing(self.work))
        found = self.versions()
        assert found or self.kind.resumes, where
        if fault.error is not None and outcome.ended == "done":
            assert 1 in found, where  # what it says is so
        # If only the folder could not be synced, the new one is there, and the next attempt removes the old one.
        if outcome.ended == "error" and fault.name != "disk gone" and not self.kind.resumes and 1 not in found:
            known = {name for folder in self.folders for name in listing(folder)}
            assert known.issuperset(listing(self.work)), where
        self.check_theirs(where)
        # The next attempt makes everything good.
        self.do("save", self.work, version=1)
        assert 1 in self.versions(), where
        assert listing(self.work) == listing(self.folders[1]), where
        self.check_theirs(where)

    def check_theirs(self, where: object) -> None:
        for path, text in self.theirs.items():
            file = self.work / self.kind.path / path
            assert file.exists(), where
            assert file.read_text() == text, where


def listing(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def faults(saving: Saving, every: int, kills: int) -> Iterator[Fault]:
    """What can go wrong at every so many calls, and kills at random moments."""
    counts, draw = saving.counts, random.Random(saving.name)
    space = sum(counts[kind] for kind in ("write", "create", "mkdir"))
    yield from (disk_full(at) for at in range(0, space, every))
    yield from (file_too_large(at) for at in range(0, counts["write"], every))
    for kind in ("sync", "rename", "mkdir"):
        yield from (call_fails(kind, at) for at in range(0, counts[kind], max(1, every // 5)))
    calls = sum(counts[kind] for kind in ALL)
    yield from (disk_gone(at) for at in range(3, calls, every))
    yield from (killed(draw.randrange(calls)) for _ in range(kills))


@pytest.mark.slow_cases("corpus-80-1", "keras-80-1", "preset-80-1")
@pytest.mark.parametrize(
    ("name", "every", "kills"),
    [
        *((name, 80, 1) for name in SHORT),
        *(pytest.param(n, EVERY.get(n, 10), kills, marks=pytest.mark.slow) for n, kills in KILLS.items()),
    ],
)
def test_saving(name: str, every: int, kills: int, process: WatchedProcess) -> None:
    if KINDS[name].needs not in ("", keras.backend.backend()):
        pytest.skip(f"needs {KINDS[name].needs}")
    process.ask("nothing")
    if process.disk is None:
        pytest.skip("needs seccomp's user notification: Linux 5.5")
    saving = Saving(process, name, process.folder / f"{name} {every} saves")
    for fault in faults(saving, every, kills):
        saving.under(fault)
    print(name, saving.counts, saving.tried)
    assert sum(saving.tried.values()) >= 5
