"""Atomic writes: after a crash or on a full disk, a file or directory is the old one or the new one, never a part."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from lmzoo.errors import PathExistsError

# Waiting for somebody who is cleaning up: not for long, since another program may hold the lock, such as flock(1).
_TRIES = 20
# What the system says if a disk is full, a quota is used up, or a file exceeds the limit of its size.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_path(path: object) -> None:
    """Check that an argument is the path of a file or directory.

    Raises:
        TypeError: if it is something else.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"Expected the path of a file or directory, a string or a `pathlib.Path`, got {path!r:.60}.")


def check_room(directory: Path, size: int) -> None:
    """Check that a file of `size` bytes can be written.

    It is for writers that cannot fail: HDF5's library crashes the process when it closes a file on a full disk.

    Raises:
        OSError: if the disk is full, or a quota used up.
    """
    if not hasattr(os, "posix_fallocate"):  # macOS
        if shutil.disk_usage(directory).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(directory))
        return
    with tempfile.TemporaryFile(dir=directory) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise


def _local(path: str | os.PathLike[str]) -> Path:
    check_path(path)
    if "://" in os.fspath(path):
        raise ValueError(f"{os.fspath(path)!r} is a URL: save to a local path and copy it from there.")
    return Path(path).expanduser().resolve()


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path with the same suffixes, which replaces `path` when the `with` block succeeds.

    After a failure `path` is unchanged, and the temporary file is gone. A killed process leaves a hidden file,
    `.<random>.<name>`, which the next one that writes `path` removes, unless somebody else is writing in the folder. On
    a network file system, where locks may not be seen by other hosts, only one host at a time may write `path`.

    Raises:
        OSError: if the file cannot be written; FileNotFoundError if the block has not written it; FileExistsError at
            once, if `path` is a device or a pipe, such as /dev/null.

    Example:

    ```python
    from lmzoo.files.atomic import atomic_file

    with atomic_file("scores.json") as temporary:
        temporary.write_text("{}")
    ```
    """
    target = _local(path)
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise FileExistsError(f"{target} is a device or a pipe, and is not replaced by a file: give another path.")
    _make_directory(target.parent)
    temporary = target.with_name(f".{secrets.token_hex(4)}.{target.name}")

    def clean_up() -> None:
        for left in _siblings(target, rf"\.[0-9a-f]{{8}}\.{re.escape(target.name)}"):
            with contextlib.suppress(OSError):
                left.unlink()

    with _writing_in(target.parent, clean_up):
        try:
            yield temporary
            if target.exists():
                _copy_mode(target, temporary)
            _sync(temporary)
            temporary.replace(target)
        except BaseException as error:
            _name_target(error, target, temporary)
            with contextlib.suppress(PermissionError):
                temporary.unlink(missing_ok=True)
            raise
        _sync(target.parent)


@contextlib.contextmanager
def atomic_directory(
    path: str | os.PathLike[str], *, marker: str, owns: Collection[str], overwrite: bool = True
) -> Iterator[Path]:
    """Yield a temporary directory, which replaces `path` when the `with` block succeeds.

    After a failure `path` is unchanged, and the temporary directory is gone. On Linux and macOS, the old and the new
    directory are swapped in one step if the file system supports it: even if the process is killed, `path` is one or
    the other. Elsewhere (on NFS, for example) there is an instant between two renames when the old directory is called
    `.<name>.<random>.old`.

    In an existing directory only the entries in `owns` are replaced. Others (README.md, .git) are kept, unless the
    block has written an entry of the same name. They are there at every moment: the new directory gets hard links to
    them before the swap, or copies where the file system has no links.

    A killed process can leave hidden directories next to `path`. The next one that writes `path` removes them, and
    first returns what only they hold: the old directory, if there is none, or others' entries. If somebody else is
    writing in the folder, this waits for the next time. For network file systems see `atomic_file`.

    Args:
        path: the directory to write; its parents are created.
        marker: a file that every directory of this kind holds. A directory that holds other names of `owns` but not
            this one is of another kind, and is not replaced.
        owns: the names that directories of this kind may hold at the top level.
        overwrite: whether an existing directory that is not empty may be replaced.

    Raises:
        FileExistsError: at once, if `path` is a file, may not be overwritten or is a directory of another kind.
        OSError: if the directory cannot be written.

    Example:

    ```python
    from lmzoo.files.atomic import atomic_directory

    with atomic_directory("report", marker="index.html", owns={"index.html", "images"}) as temporary:
        (temporary / "index.html").write_text("<h1>Report</h1>")
    ```
    """
    target = _local(path)
    _make_directory(target.parent)
    name = f".{target.name}.{secrets.token_hex(4)}"
    temporary, old = target.with_name(f"{name}.new"), target.with_name(f"{name}.old")
    kept: list[str] = []
    with _writing_in(target.parent, lambda: _heal(target, owns)):
        _check_replaceable(target, marker, owns, overwrite)
        try:
            temporary.mkdir()
            yield temporary
            _check_replaceable(target, marker, owns, overwrite)
            for entry in temporary.rglob("*"):
                _sync(entry)
            if target.exists():
                kept = _link_foreign(target, temporary, owns)
                _copy_mode(target, temporary)
            _sync(temporary)
            if not target.exists():
                temporary.rename(target)
            elif _exchange(temporary, target):
                old = temporary
            else:
                target.rename(old)
                try:
                    temporary.rename(target)
                except BaseException:
                    old.rename(target)
                    raise
        except BaseException as error:
            _name_target(error, target, temporary)
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for entry_name in kept:  # the originals return, with what was written there in the meantime
            _exchange(old / entry_name, target / entry_name)
        _sync(target.parent)
        if old.exists():
            _return_foreign(old, target, owns)
            shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _writing_in(folder: Path, clean_up: Callable[[], None]) -> Iterator[None]:
    """Hold a lock that all who write in a folder share; if nobody else holds it, clean up before.

    The system releases the lock of a killed process. So while nobody writes, all that is unfinished was left by killed
    ones.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # where the file system has no locks, nothing is cleaned up
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                clean_up()
            for _ in range(_TRIES):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _siblings(target: Path, pattern: str) -> list[Path]:
    """Return the entries next to `target` whose names match a pattern."""
    return [target.with_name(name) for name in os.listdir(target.parent) if re.fullmatch(pattern, name)]


def _heal(target: Path, owns: Collection[str]) -> None:
    """Remove what killed processes left of a directory, and return what only that holds."""
    # `.tmp` is from earlier versions, where it could hold the only copy of others' entries after the swap.
    for left in _siblings(target, rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.(new|old|tmp)"):
        with contextlib.suppress(OSError):
            if left.suffix == ".old" and not target.exists():  # killed between two renames
                left.rename(target)
                continue
            if left.suffix != ".new" and target.is_dir():
                _return_foreign(left, target, owns)
            shutil.rmtree(left, ignore_errors=True)


def _link_foreign(target: Path, temporary: Path, owns: Collection[str]) -> list[str]:
    """Link the entries of `target` that are not ours into `temporary`, unless it has such, and return their names."""
    kept = [name for name in os.listdir(target) if name not in owns and not os.path.lexists(temporary / name)]
    for name in kept:
        entry = target / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, temporary / name, symlinks=True, copy_function=link_or_copy)
        else:
            link_or_copy(entry, temporary / name)
    return kept


def link_or_copy(source: str | Path, to: str | Path) -> None:
    """Make a hard link to a file, or a copy where the file system has no links; nothing if the file is gone."""
    try:
        os.link(source, to, follow_symlinks=False)
    except FileNotFoundError:  # removed in the meantime
        pass
    except OSError as error:
        if error.errno == errno.EXDEV:  # a mounted file system: what is copied would later be deleted there
            raise
        shutil.copy2(source, to, follow_symlinks=False)


def _return_foreign(old: Path, target: Path, owns: Collection[str]) -> None:
    """Move the entries that are not ours to `target`, unless it has such ones."""
    for entry in old.iterdir():
        if entry.name not in owns and not os.path.lexists(target / entry.name):
            entry.rename(target / entry.name)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(f"{directory} is not a directory, or lies in a file; give another path.") from error


def _name_target(error: BaseException, target: Path, temporary: Path) -> None:
    """Make an error of the system name the path that the caller knows, and say what to do if there is no room."""
    if not isinstance(error, OSError):
        return
    within = isinstance(error.filename, (str, os.PathLike)) and Path(error.filename).is_relative_to(temporary)
    if error.errno in _NO_ROOM:
        reason = os.strerror(error.errno)
        error.strerror = f"{reason}: what was there before has not changed. Free some room, or choose another folder"
    if error.errno in _NO_ROOM or within:
        error.filename = str(target)
        if error.filename2 is not None:
            del error.filename2


def _check_replaceable(target: Path, marker: str, owns: Collection[str], overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file; give the path of a directory.")
    present = set(os.listdir(target)) if target.exists() else set()
    if present and not overwrite:
        raise PathExistsError(f"{target} exists already; pass `overwrite=True` or another directory.")
    if marker not in present and (strange := sorted(present.intersection(owns))):
        raise FileExistsError(f"{target} is not replaced: it holds {strange} but no {marker}. Give another directory.")
    if target.exists() and Path.cwd().is_relative_to(target):
        raise FileExistsError(f"{target} is the working directory or contains it; give another directory.")


def _exchange(first: Path, second: Path) -> bool:
    """Swap two directories in one step; return False if the system or the file system cannot."""
    libc, swap = ctypes.CDLL(None), 2
    try:
        if sys.platform == "darwin":
            return libc.renamex_np(os.fsencode(first), os.fsencode(second), swap) == 0
        here = -100  # AT_FDCWD
        return libc.renameat2(here, os.fsencode(first), here, os.fsencode(second), swap) == 0
    except AttributeError:  # an old C library
        return False


def _copy_mode(source: Path, to: Path) -> None:
    if source.stat().st_mode != to.stat().st_mode:  # some file systems have only one mode, and refuse to set it
        shutil.copymode(source, to)


def _sync(path: Path) -> None:
    """Wait until the file or directory is on the disk, if the file system supports it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
