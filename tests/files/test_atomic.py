"""After any failure while writing, the old content or the new content is there, and whole."""

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
    text = (target / "marker.json").read_text()
    assert (target / "data" / "two.txt").read_text() == text
    return text


@pytest.fixture
def target(tmp_path):
    directory = tmp_path / "target"
    directory.mkdir()
    write(directory, "old")
    (directory / "one.txt").write_text("only in the old one")
    return directory


@pytest.fixture
def no_swap(monkeypatch):
    """Replace directories in two renames, as on file systems that cannot swap them."""
    monkeypatch.setattr(atomic, "_exchange", lambda first, second: False)


@pytest.fixture(params=[True, False], ids=["one step", "two renames"])
def swap_or_rename(request):
    if not request.param:
        request.getfixturevalue("no_swap")


def test_a_new_directory_gets_its_parents(tmp_path):
    replace(tmp_path / "a" / "b")
    assert content(tmp_path / "a" / "b") == "new"
    assert os.listdir(tmp_path / "a") == ["b"]
    new_directory = tmp_path / "plain"
    new_directory.mkdir()
    assert (tmp_path / "a" / "b").stat().st_mode == new_directory.stat().st_mode


@pytest.mark.usefixtures("swap_or_rename")
def test_only_owned_files_are_replaced(target):
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


def test_symbolic_links_are_followed(target):
    link = target.with_name("link")
    link.symlink_to(target)
    replace(link)
    assert link.is_symlink()
    assert content(target) == "new"


def test_other_directories_are_left_alone(tmp_path, target, monkeypatch):
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
def test_an_error_in_the_block_leaves_the_old_content(target, error):
    with pytest.raises(error if isinstance(error, type) else OSError):
        replace(target, error)
    assert content(target) == "old"
    assert os.listdir(target.parent) == ["target"]


@pytest.mark.usefixtures("swap_or_rename")
def test_file_systems_without_sync_are_supported(target, monkeypatch):
    def unsupported(descriptor):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", unsupported)
    replace(target)
    assert content(target) == "new"


@pytest.mark.parametrize("fail_at", range(6))
def test_a_full_disk_while_syncing_leaves_whole_content(target, monkeypatch, fail_at):
    calls = iter(range(100))
    original = os.fsync

    def fsync(descriptor):
        if next(calls) == fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    # Two files and two directories are synced before the swap, and the parent after it.
    if fail_at < 5:
        with pytest.raises(OSError, match="No space left"):
            replace(target)
    else:
        replace(target)
    assert content(target) == ("old" if fail_at < 4 else "new")
    if fail_at != 4:
        assert os.listdir(target.parent) == ["target"]


@pytest.mark.usefixtures("no_swap")
def test_a_failing_rename_restores_the_old_content(target, monkeypatch):
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


# Replaces a directory without importing the rest of lmzoo, which takes seconds.
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
if moment == "forever":
    print("ready", flush=True)
    while True:
        write("old")
        write("new")
write("new")
"""


def start_child(target: Path, moment: str) -> subprocess.Popen:
    package = str(Path(atomic.__file__).parents[1])
    return subprocess.Popen([sys.executable, "-c", CHILD, package, str(target), moment], stdout=subprocess.PIPE)


def can_swap(directory: Path) -> bool:
    (directory / "left").mkdir()
    (directory / "right").mkdir()
    swapped = atomic._exchange(directory / "left", directory / "right")
    (directory / "left").rmdir()
    (directory / "right").rmdir()
    return swapped


def add_users_files(directory: Path) -> None:
    (directory / "README.md").write_text("mine")
    (directory / "link").symlink_to("nowhere")
    (directory / ".git" / "refs").mkdir(parents=True)
    (directory / ".git" / "refs" / "main").write_text("ref")


def check_users_files(directory: Path) -> None:
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
def test_a_killed_process_leaves_whole_content(target, moment, expected):
    if moment == "after swap" and not can_swap(target.parent):
        pytest.skip("this file system cannot swap two directories")
    add_users_files(target)
    with start_child(target, moment) as process:
        assert process.wait(20) == -signal.SIGKILL
    if expected == "recoverable":
        assert not target.exists()
        (old,) = target.parent.glob(".target.*.old")
        assert content(old) == "old"
        with pytest.raises(FileExistsError, match="exists already"):
            replace(target, overwrite=False)  # the old content is back
        expected = "old"
    assert content(target) == expected
    check_users_files(target)
    replace(target)
    assert content(target) == "new"
    check_users_files(target)
    assert os.listdir(target.parent) == ["target"]


def test_readers_see_the_directory_at_every_moment(target):
    if not can_swap(target.parent):
        pytest.skip("this file system cannot swap two directories")
    add_users_files(target)
    with start_child(target, "forever") as process:
        process.stdout.readline()
        killer = threading.Timer(0.7, process.kill)
        killer.start()
        reads = 0
        while process.poll() is None:
            assert (target / "marker.json").read_text() in ("old", "new")
            check_users_files(target)
            reads += 1
    assert reads > 100
    assert content(target) in ("old", "new")


def test_files_that_an_earlier_version_hid_return(target):
    hidden, unfinished = (target.with_name(f".target.0a1b2c3d.{end}") for end in ("tmp", "new"))
    for directory in (hidden, unfinished):
        directory.mkdir()
    add_users_files(hidden)
    (hidden / "one.txt").write_text("of the old one")
    (unfinished / "half.md").write_text("# Half")
    replace(target)
    check_users_files(target)
    assert sorted(os.listdir(target)) == [".git", "README.md", "data", "link", "marker.json"]
    assert os.listdir(target.parent) == ["target"]


def test_files_written_meanwhile_are_kept(target, monkeypatch):
    """Other processes may write before the swap, during it, or after it."""
    if not can_swap(target.parent):
        pytest.skip("this file system cannot swap two directories")
    add_users_files(target)
    exchange, git = atomic._exchange, (target / ".git").stat().st_ino

    def write_and_exchange(first, second):
        if second == target:
            (target / ".git" / "refs" / "main").unlink()
            (target / ".git" / "refs" / "main").write_text("new ref")
            (target / "LICENSE").write_text("MIT")
        return exchange(first, second)

    monkeypatch.setattr(atomic, "_exchange", write_and_exchange)
    replace(target)
    assert (target / ".git" / "refs" / "main").read_text() == "new ref"
    assert (target / ".git").stat().st_ino == git
    assert (target / "LICENSE").read_text() == "MIT"
    assert os.listdir(target.parent) == ["target"]


@pytest.mark.usefixtures("swap_or_rename")
def test_file_systems_without_links_are_supported(target, monkeypatch):
    def forbidden(*args, **kwargs):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    add_users_files(target)
    monkeypatch.setattr(os, "link", forbidden)
    replace(target)
    assert content(target) == "new"
    check_users_files(target)
    assert os.listdir(target.parent) == ["target"]


def test_mounted_directories_are_left_alone(target, monkeypatch):
    def elsewhere(*args, **kwargs):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    add_users_files(target)
    monkeypatch.setattr(os, "link", elsewhere)
    with pytest.raises(OSError, match="cross-device"):
        replace(target)
    assert content(target) == "old"
    check_users_files(target)
    assert os.listdir(target.parent) == ["target"]


def test_files_of_killed_processes_are_removed(tmp_path):
    own_file, other_file = tmp_path / ".0a1b2c3d.model.keras", tmp_path / ".0a1b2c3d.other.keras"
    for path in (own_file, other_file):
        path.write_text("half")
    with atomic_file(tmp_path / "model.keras") as first:
        assert not own_file.exists()
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


def test_a_lock_on_the_parent_directory_does_not_block(tmp_path):
    """`flock <folder> <command>` locks it, and the command must not wait for itself."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        replace(tmp_path / "target")
    finally:
        os.close(descriptor)
    assert content(tmp_path / "target") == "new"


def test_a_pipe_is_not_replaced(tmp_path):
    """Otherwise root could replace /dev/null for the whole machine."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="is a device or a pipe"), atomic_file(tmp_path / "pipe") as temporary:
        temporary.write_text("content")
    assert (tmp_path / "pipe").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_file_appears_when_it_is_whole(tmp_path):
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
def test_an_error_leaves_the_old_file(tmp_path, monkeypatch, writes):
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
