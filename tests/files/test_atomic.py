"""Whatever goes wrong while writing, the old content or the new one is there, whole."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lmzoo.files import atomic
from lmzoo.files.atomic import atomic_directory, atomic_file

OWNS = {"marker.json", "one.txt", "data"}
FALLBACK = pytest.mark.parametrize("swaps", [True, False], ids=["one step", "two renames"])


def write(directory: Path, content: str) -> None:
    (directory / "marker.json").write_text(content)
    (directory / "data").mkdir()
    (directory / "data" / "two.txt").write_text(content)


def replace(target: Path, error: type[BaseException] | BaseException | None = None, **kwargs) -> None:
    with atomic_directory(target, marker="marker.json", owns=OWNS, **kwargs) as temporary:
        write(temporary, "new")
        if error:
            raise error


def content(target: Path) -> str:
    one, two = (target / "marker.json").read_text(), (target / "data" / "two.txt").read_text()
    assert one == two
    return one


@pytest.fixture
def target(tmp_path):
    directory = tmp_path / "target"
    directory.mkdir()
    write(directory, "old")
    (directory / "one.txt").write_text("only in the old one")
    return directory


@pytest.fixture
def no_swap(monkeypatch):
    def forbid():
        monkeypatch.setattr(atomic, "_exchange", lambda first, second: False)

    return forbid


def test_new_directory_with_parents(tmp_path):
    replace(tmp_path / "a" / "b")
    assert content(tmp_path / "a" / "b") == "new"
    assert os.listdir(tmp_path / "a") == ["b"]
    plain = tmp_path / "plain"
    plain.mkdir()
    assert (tmp_path / "a" / "b").stat().st_mode == plain.stat().st_mode


@FALLBACK
def test_replaces_what_it_owns_and_keeps_the_rest(target, swaps, no_swap):
    if not swaps:
        no_swap()
    target.chmod(0o750)
    (target / ".git").mkdir()
    (target / ".git" / "HEAD").write_text("ref")
    (target / "notes.txt").write_text("mine")
    replace(target)
    assert content(target) == "new"
    assert sorted(os.listdir(target)) == [".git", "data", "marker.json", "notes.txt"]
    assert (target / ".git" / "HEAD").read_text() == "ref"
    assert target.stat().st_mode & 0o777 == 0o750
    assert os.listdir(target.parent) == ["target"]


def test_through_a_symbolic_link(target):
    link = target.with_name("link")
    link.symlink_to(target)
    replace(link)
    assert link.is_symlink()
    assert content(target) == "new"


def test_what_is_not_ours_is_left_alone(tmp_path, target, monkeypatch):
    with pytest.raises(FileExistsError, match="overwrite=True"):
        replace(target, overwrite=False)
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    with pytest.raises(FileExistsError, match=r"holds \['data'\] but no marker\.json"):
        replace(project)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(FileExistsError, match="is a file"):
        replace(file)
    monkeypatch.chdir(target / "data")
    with pytest.raises(FileExistsError, match="working directory"):
        replace(target)
    assert content(target) == "old"
    assert sorted(os.listdir(tmp_path)) == ["file", "project", "target"]


def test_an_empty_directory_is_filled(tmp_path):
    (tmp_path / "empty").mkdir()
    replace(tmp_path / "empty", overwrite=False)
    assert content(tmp_path / "empty") == "new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")])
def test_failing_body(target, error):
    with pytest.raises(error if isinstance(error, type) else OSError):
        replace(target, error)
    assert content(target) == "old"
    assert os.listdir(target.parent) == ["target"]


@FALLBACK
def test_file_system_without_sync(target, monkeypatch, swaps, no_swap):
    def unsupported(descriptor):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", unsupported)
    if not swaps:
        no_swap()
    replace(target)
    assert content(target) == "new"


@pytest.mark.parametrize("fail_at", range(6))
def test_full_disk_while_syncing(target, monkeypatch, fail_at):
    calls = iter(range(100))
    original = os.fsync

    def fsync(descriptor):
        if next(calls) == fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    # Two files and two folders before the swap; the parent after it; then nothing.
    if fail_at < 5:
        with pytest.raises(OSError, match="No space left"):
            replace(target)
    else:
        replace(target)
    assert content(target) == ("old" if fail_at < 4 else "new")
    if fail_at != 4:
        assert os.listdir(target.parent) == ["target"]


def test_failing_rename_restores_the_old_one(target, monkeypatch, no_swap):
    no_swap()
    original = Path.rename

    def rename(self, to):
        if self.suffix == ".new":
            raise OSError(errno.EIO, "I/O error")
        return original(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="I/O error"):
        replace(target)
    assert content(target) == "old"
    assert os.listdir(target.parent) == ["target"]


# Runs without importing lmzoo itself, which takes seconds: the modules in question need none of it.
CHILD = """
import os, signal, sys, types
from pathlib import Path
package, target, moment = sys.argv[1:]
for name, path in {"lmzoo": package, "lmzoo.presets": package + "/presets"}.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from lmzoo.files import atomic

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

def write(version):
    with atomic.atomic_directory(target, marker="marker.json", owns={"marker.json", "data"}) as directory:
        (directory / "marker.json").write_text(version)
        if moment == "body":
            die()
        (directory / "data").mkdir()
        (directory / "data" / "two.txt").write_text(version)

exchange, rename = atomic._exchange, Path.rename
if moment == "sync":
    atomic._sync = die
if moment == "before swap":
    atomic._exchange = die
if moment == "after swap":
    atomic._exchange = lambda *args: exchange(*args) and die()
if moment == "deleting":
    atomic.shutil.rmtree = die
if moment == "between renames":
    atomic._exchange = lambda *args: False
    Path.rename = lambda self, to: die() if self.suffix == ".new" else rename(self, to)
if moment == "for ever":
    print("ready", flush=True)
    while True:
        write("old")
        write("new")
write("new")
"""


def child(target: Path, moment: str) -> subprocess.Popen:
    package = str(Path(atomic.__file__).parents[1])
    return subprocess.Popen([sys.executable, "-c", CHILD, package, str(target), moment], stdout=subprocess.PIPE)


def can_swap(directory: Path) -> bool:
    (directory / "left").mkdir()
    (directory / "right").mkdir()
    swapped = atomic._exchange(directory / "left", directory / "right")
    (directory / "left").rmdir()
    (directory / "right").rmdir()
    return swapped


def add_foreign(directory: Path) -> None:
    (directory / "README.md").write_text("mine")
    (directory / "link").symlink_to("nowhere")
    (directory / ".git" / "refs").mkdir(parents=True)
    (directory / ".git" / "refs" / "main").write_text("ref")


def check_foreign(directory: Path) -> None:
    assert (directory / "README.md").read_text() == "mine"
    assert os.readlink(directory / "link") == "nowhere"
    assert (directory / ".git" / "refs" / "main").read_text() == "ref"


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("body", "old"),
        ("sync", "old"),
        ("before swap", "old"),
        ("after swap", "new"),
        ("deleting", "new"),
        ("between renames", "recoverable"),
    ],
)
def test_killed(target, moment, expected):
    if moment == "after swap" and not can_swap(target.parent):
        pytest.skip("this file system cannot swap two directories")
    add_foreign(target)
    with child(target, moment) as process:
        assert process.wait(20) == -signal.SIGKILL
    if expected == "recoverable":
        assert not target.exists()
        (old,) = target.parent.glob(".target.*.old")
        assert content(old) == "old"
        with pytest.raises(FileExistsError, match="exists already"):
            replace(target, overwrite=False)  # it is back
        expected = "old"
    assert content(target) == expected
    check_foreign(target)
    replace(target)
    assert content(target) == "new"
    check_foreign(target)
    assert os.listdir(target.parent) == ["target"]


def test_there_at_every_moment(target):
    if not can_swap(target.parent):
        pytest.skip("this file system cannot swap two directories")
    add_foreign(target)
    with child(target, "for ever") as process:
        process.stdout.readline()
        killer = threading.Timer(0.7, process.kill)
        killer.start()
        looks = 0
        while process.poll() is None:
            assert (target / "marker.json").read_text() in ("old", "new")
            check_foreign(target)
            looks += 1
    assert looks > 100
    assert content(target) in ("old", "new")


def test_what_an_earlier_version_has_hidden_returns(target):
    hidden, unfinished = (target.with_name(f".target.0a1b2c3d.{end}") for end in ("tmp", "new"))
    for directory in (hidden, unfinished):
        directory.mkdir()
    add_foreign(hidden)
    (hidden / "one.txt").write_text("of the old one")
    (unfinished / "half.md").write_text("# Half")
    replace(target)
    check_foreign(target)
    assert sorted(os.listdir(target)) == [".git", "README.md", "data", "link", "marker.json"]
    assert os.listdir(target.parent) == ["target"]


def test_what_others_write_meanwhile_is_kept(target, monkeypatch):
    """Whether before the swap, in the time that the links take, or after it."""
    if not can_swap(target.parent):
        pytest.skip("this file system cannot swap two directories")
    add_foreign(target)
    exchange, git = atomic._exchange, (target / ".git").stat().st_ino

    def committed(first, second):
        if second == target:
            (target / ".git" / "refs" / "main").unlink()
            (target / ".git" / "refs" / "main").write_text("new ref")
            (target / "LICENSE").write_text("MIT")
        return exchange(first, second)

    monkeypatch.setattr(atomic, "_exchange", committed)
    replace(target)
    assert (target / ".git" / "refs" / "main").read_text() == "new ref"
    assert (target / ".git").stat().st_ino == git
    assert (target / "LICENSE").read_text() == "MIT"
    assert os.listdir(target.parent) == ["target"]


@FALLBACK
def test_file_system_without_links(target, monkeypatch, swaps, no_swap):
    def forbidden(*args, **kwargs):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not swaps:
        no_swap()
    add_foreign(target)
    monkeypatch.setattr(os, "link", forbidden)
    replace(target)
    assert content(target) == "new"
    check_foreign(target)
    assert os.listdir(target.parent) == ["target"]


def test_a_mounted_folder_is_not_touched(target, monkeypatch):
    def elsewhere(*args, **kwargs):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    add_foreign(target)
    monkeypatch.setattr(os, "link", elsewhere)
    with pytest.raises(OSError, match="cross-device"):
        replace(target)
    assert content(target) == "old"
    check_foreign(target)
    assert os.listdir(target.parent) == ["target"]


def test_files_that_killed_processes_left(tmp_path):
    left, others = tmp_path / ".0a1b2c3d.model.keras", tmp_path / ".0a1b2c3d.other.keras"
    for path in (left, others):
        path.write_text("half")
    with atomic_file(tmp_path / "model.keras") as first:
        assert not left.exists()
        first.write_text("1")
        with atomic_file(tmp_path / "model.keras") as second:
            assert first.exists()  # its writer is alive
            second.write_text("2")
    assert (tmp_path / "model.keras").read_text() == "1"
    assert sorted(os.listdir(tmp_path)) == [".0a1b2c3d.other.keras", "model.keras"]


def test_a_directory_that_is_being_written_is_not_removed(target):
    with atomic_directory(target, marker="marker.json", owns=OWNS) as first:
        replace(target)
        write(first, "newer")
    assert content(target) == "newer"
    assert os.listdir(target.parent) == ["target"]


def test_somebody_else_locks_the_folder(tmp_path):
    """As `flock <folder> <command>` does: the command must not wait for itself."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        replace(tmp_path / "target")
    finally:
        os.close(descriptor)
    assert content(tmp_path / "target") == "new"


def test_a_pipe_is_not_replaced(tmp_path):
    """Nor is /dev/null, which root could replace for the whole machine."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="is a device or a pipe"), atomic_file(tmp_path / "pipe") as temporary:
        temporary.write_text("content")
    assert (tmp_path / "pipe").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_file(tmp_path):
    path = tmp_path / "new" / "model.keras"
    with atomic_file(path) as temporary:
        assert temporary.suffix == ".keras"
        temporary.write_text("first")
        assert not path.exists()
    path.chmod(0o640)
    with atomic_file(path) as temporary:
        temporary.write_text("second")
        assert path.read_text() == "first"
    assert path.read_text() == "second"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(path.parent) == ["model.keras"]


@pytest.mark.parametrize("writes", [True, False])
def test_failing_file(tmp_path, monkeypatch, writes):
    path = tmp_path / "scores.json"
    path.write_text("old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    def write_file():
        with atomic_file(path) as temporary:
            if writes:
                temporary.write_text("new")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left" if writes else "No such file"):
        write_file()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["scores.json"]
