"""Atomic writes: after a crash or on a full disk, a file or directory is the old one or the new one, never a part."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

# What the system says if a disk is full, a quota is used up, or a file exceeds the limit of its size.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_path(path: object) -> None:
    """Checks that an argument is the path of a file or directory.

    Raises:
        TypeError: if it is something else.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"Expected the path of a file or directory, a string or a `pathlib.Path`, got {path!r:.60}.")


def check_room(directory: Path, size: int) -> None:
    """Checks that a file of `size` bytes can be written.

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
    """Yields a temporary path with the same suffixes, which replaces `path` when the `with` block succeeds.

    After a failure `path` is unchanged, and the temporary file is gone.

    Raises:
        OSError: if the file cannot be written; FileNotFoundError if the block has not written it.

    Example:

    ```python
    from lmzoo.files.atomic import atomic_file

    with atomic_file("scores.json") as temporary:
        temporary.write_text("{}")
    ```
    """
    target = _local(path)
    _make_directory(target.parent)
    temporary = target.with_name(f".{secrets.token_hex(4)}.{target.name}")
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
    """Yields a temporary directory, which replaces `path` when the `with` block succeeds.

    After a failure `path` is unchanged, and the temporary directory is gone. On Linux and macOS, the old and the new
    directory are swapped in one step if the file system supports it: even if the process is killed, `path` is one or
    the other. Elsewhere (on NFS, for example) there is an instant between two renames when the old directory is called
    `.<name>.<random>.old`. A killed process can leave a hidden `.<name>.<random>.tmp` next to `path`.

    In an existing directory only the entries in `owns` are replaced. Others (README.md, .git) are kept, unless the
    block has written an entry of the same name.

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
    _check_replaceable(target, marker, owns, overwrite)
    _make_directory(target.parent)
    name = f".{target.name}.{secrets.token_hex(4)}"
    temporary, old = target.with_name(f"{name}.tmp"), target.with_name(f"{name}.old")
    try:
        temporary.mkdir()
    except OSError as error:
        _name_target(error, target, temporary)
        raise
    try:
        yield temporary
        _check_replaceable(target, marker, owns, overwrite)
        for entry in (*temporary.rglob("*"), temporary):
            _sync(entry)
        if not target.exists():
            temporary.rename(target)
        else:
            _copy_mode(target, temporary)
            if _exchange(temporary, target):
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
    _sync(target.parent)
    if old.exists():
        for entry in old.iterdir():
            if entry.name not in owns and not (target / entry.name).exists():
                entry.rename(target / entry.name)
        shutil.rmtree(old, ignore_errors=True)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(f"{directory} is not a directory, or lies in a file; give another path.") from error


def _name_target(error: BaseException, target: Path, temporary: Path) -> None:
    """Makes an error of the system name the path that the caller knows, and say what to do if there is no room."""
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
        raise FileExistsError(f"{target} exists already; pass `overwrite=True` or another directory.")
    if marker not in present and (strange := sorted(present.intersection(owns))):
        raise FileExistsError(f"{target} is not replaced: it holds {strange} but no {marker}. Give another directory.")
    if target.exists() and Path.cwd().is_relative_to(target):
        raise FileExistsError(f"{target} is the working directory or contains it; give another directory.")


def _exchange(first: Path, second: Path) -> bool:
    """Swaps two directories in one step; returns False if the system or the file system cannot."""
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
    """Waits until the file or directory is on the disk, if the file system supports it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
