"""If the disk fails or the process is killed during a save, the old artifact is left intact, or the new one is."""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import pytest

from tests.faults.artifact_kinds import KINDS
from tests.faults.failing_disk import ALL, Fault, call_fails, disk_full, disk_gone, file_too_large, killed
from tests.faults.watched_process import Outcome, WatchedProcess

# How often a process is killed while it saves each kind, 68 times in all.
KILLS = {
    "keras": 8, "preset": 8, "state": 8, "corpus": 8, "hf": 6, "keras_hub": 6, "bilm": 5, "training": 6, "tf1": 2,
    "prepared corpus": 5, "saved model": 1, "onnx": 1, "litert": 1, "arpa": 3, "arpa.gz": 2,
    "sentence transformers": 3,
}  # fmt: skip
# System calls between two faults, 10 by default: a training run writes six states, an export takes seconds, and a
# preset has many small files.
EVERY = {"training": 100, "saved model": 100, "preset": 30, "onnx": 20, "litert": 20}
USER_FILES = {"NOTES.md": "mine", ".git/HEAD": "ref"}  # files that users add to the directory of an artifact
# HDF5 ends the process, at once or later, if the disk fills up before Keras closes the file of weights.
CRASHES = ["preset"]
HAS_USER_FILES = ["preset", "hf", "sentence transformers", "keras_hub", "bilm", "tf1", "saved model"]


class Saving:
    """A kind of artifact, saved over an older version of it on a disk that fails.

    Attributes:
        counts: Number of system calls of a save, by kind.
        fault_counts: Number of faults that happened, by name.
    """

    def __init__(self, process: WatchedProcess, name: str, folder: Path) -> None:
        self.process = process
        self.name = name
        self.kind = KINDS[name]
        self.folders = [folder / "old", folder / "new"]
        self.work = folder / "work"
        self.fault_counts: dict[str, int] = {}
        self.prepared_process = 0  # number of the process that has loaded both versions
        old, new = self.folders
        old.mkdir(parents=True)
        if not self.kind.resumes:
            self.do("save", old, version=0)
        for path, text in self.user_files.items():
            (old / self.kind.path / path).parent.mkdir(exist_ok=True)
            (old / self.kind.path / path).write_text(text)
        self.reset()
        self.do("save", self.work, version=1)
        assert process.disk is not None, "the process was killed"
        self.counts = dict(process.disk.counts)
        shutil.copytree(self.work, new)

    @property
    def user_files(self) -> dict[str, str]:
        return USER_FILES if self.name in HAS_USER_FILES else {}

    def reset(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.folders[0], self.work)

    def do(self, function: str, folder: Path, **arguments: int) -> Outcome:
        outcome = self.process.ask(function, kind=self.name, folder=str(folder), **arguments)
        assert outcome.ended == "done", (self.name, outcome)
        return outcome

    def versions(self) -> list[int]:
        """Return the versions that the artifact equals; none if it can be resumed and is incomplete."""
        outcome = self.after_a_late_crash(self.load)
        assert outcome.ended == "done" or self.kind.resumes, (self.name, outcome)
        return outcome.value or []

    def after_a_late_crash(self, request: Callable[[], Outcome]) -> Outcome:
        """Return the outcome of a request, in a new process if HDF5 ends the old one only now."""
        outcome = request()
        return request() if outcome.ended == "crashed" and self.name in CRASHES else outcome

    def load(self) -> Outcome:
        self.process.ask("nothing")
        if self.prepared_process != self.process.number:
            for version, folder in enumerate(self.folders):
                if version or not self.kind.resumes:
                    self.do("remember", folder, version=version)
            self.prepared_process = self.process.number
        return self.process.ask("load", kind=self.name, folder=str(self.work))

    def save_under(self, fault: Fault) -> None:
        """Save while the disk fails, check which version is left, and save again."""
        self.reset()
        function = "save_in_a_fork" if fault.error is None and self.kind.forks else "save"
        outcome = self.process.ask(function, fault, kind=self.name, folder=str(self.work), version=1)
        allowed = ("done", "error", "killed", *(["crashed"] if self.name in CRASHES else []))
        assert outcome.ended in allowed, (self.name, fault, outcome)
        if self.process.disk is not None and not self.process.disk.hit:
            return  # the save made fewer calls this time
        self.fault_counts[fault.name] = self.fault_counts.get(fault.name, 0) + 1
        context = (self.name, fault, outcome, list_files(self.work))
        versions = self.versions()
        assert versions or self.kind.resumes, context
        if fault.error is not None and outcome.ended == "done":
            assert 1 in versions, context  # a save that reports success has succeeded
        # If only the directory could not be synced, the new version is complete; the next attempt removes the old one.
        if outcome.ended == "error" and fault.name != "disk gone" and not self.kind.resumes and 1 not in versions:
            expected_files = {name for folder in self.folders for name in list_files(folder)}
            assert expected_files.issuperset(list_files(self.work)), context
        self.check_user_files(context)
        # The next attempt succeeds and leaves nothing behind.
        request = functools.partial(self.process.ask, "save", kind=self.name, folder=str(self.work), version=1)
        outcome = self.after_a_late_crash(request)
        assert outcome.ended == "done", (self.name, fault, outcome)
        assert 1 in self.versions(), context
        assert list_files(self.work) == list_files(self.folders[1]), context
        self.check_user_files(context)

    def check_user_files(self, context: object) -> None:
        for path, text in self.user_files.items():
            file = self.work / self.kind.path / path
            assert file.exists(), context
            assert file.read_text() == text, context


def list_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def faults(saving: Saving, every: int, kills: int) -> Iterator[Fault]:
    """Iterate over faults: each kind of failure after every `every` calls, and kills at random moments."""
    counts, draw = saving.counts, random.Random(saving.name)
    space = sum(counts[kind] for kind in ("write", "create", "mkdir"))
    yield from (disk_full(at) for at in range(0, space, every))
    yield from (file_too_large(at) for at in range(0, counts["write"], every))
    for kind in ("sync", "rename", "mkdir"):
        yield from (call_fails(kind, at) for at in range(0, counts[kind], max(1, every // 5)))
    calls = sum(counts[kind] for kind in ALL)
    yield from (disk_gone(at) for at in range(3, calls, every))
    yield from (killed(draw.randrange(calls)) for _ in range(kills))


@pytest.mark.parametrize(
    ("name", "every", "kills"),
    [
        ("state", 80, 1),
        *(pytest.param(n, EVERY.get(n, 10), kills, marks=pytest.mark.slow) for n, kills in KILLS.items()),
    ],
)
def test_a_failed_save_leaves_the_old_or_the_new_artifact(
    name: str, every: int, kills: int, process: WatchedProcess
) -> None:
    if KINDS[name].needs not in ("", keras.backend.backend()):
        pytest.skip(f"needs {KINDS[name].needs}")
    process.ask("nothing")
    if process.disk is None:
        pytest.skip("needs seccomp's user notification: Linux 5.5")
    saving = Saving(process, name, process.folder / f"{name} {every} saves")
    for fault in faults(saving, every, kills):
        saving.save_under(fault)
    print(name, saving.counts, saving.fault_counts)
    assert sum(saving.fault_counts.values()) >= 5
