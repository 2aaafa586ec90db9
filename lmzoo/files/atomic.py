"""Atomic writes: after a crash or on a full disk, a file or directory is either old or new, never partial."""

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

# Attempts to get the lock while another process cleans up. Few, since another program, such as flock(1), may hold it.
_LOCK_ATTEMPTS = 20
# Errors of the system for a full disk, an exhausted quota or a file over the size limit.
NO_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_path(path: object) -> None:
    """Check that `path` is a string or an `os.PathLike`, such as a `pathlib.Path`.

    Raises:
        TypeError: If `path` is anything else.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"Expected the path of a file or directory, a string or a `pathlib.Path`, got {path!r:.60}.")


def check_room(directory: Path, size: int) -> None:
    """Check that the disk has room for a file of `size` bytes in `directory`.

    Call this function before writing HDF5: the HDF5 library crashes the process when it closes a file on a full disk.

    Raises:
        OSError: If the disk is full, a quota is exhausted, or `size` is over the limit on file sizes.
    """
    if not hasattr(os, "posix_fallocate"):  # macOS
        if shutil.disk_usage(directory).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(directory))
        return
    with tempfile.TemporaryFile(dir=directory) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno in NO_SPACE_ERRORS:
                raise


def _resolve_path(path: str | os.PathLike[str]) -> Path:
    """Return the absolute form of a local path, with links and "~" resolved.

    Raises:
        TypeError: If `path` is not a path.
        ValueError: If `path` is a URL.
    """
    check_path(path)
    if "://" in os.fspath(path):
        raise ValueError(f"{os.fspath(path)!r} is a URL: save to a local path and copy it from there.")
    return Path(path).expanduser().resolve()


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path that replaces `path` when the block succeeds.

    The temporary path has the same suffixes as `path`. If the block fails, `path` is unchanged, and the temporary file
    is removed. A killed process leaves a hidden file, `.<random>.<name>`, which the next write of `path` removes, or a
    later write if another process is writing in the directory. On network file systems, which may not share locks
    between hosts, only one host at a time may write `path`.

    Raises:
        OSError: If the file cannot be written.
        FileNotFoundError: If the block has not written the file.
        FileExistsError: If `path` is a device or a pipe, such as /dev/null. This is checked before the block runs.
        ValueError: If `path` is a URL.

    Example:

    ```python
    from lmzoo.files.atomic import atomic_file

    with atomic_file("scores.json") as temporary:
        temporary.write_text("{}")
    ```
    """
    target = _resolve_path(path)
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise FileExistsError(f"{target} is a device or a pipe, and is not replaced by a file: give another path.")
    make_directory(target.parent)
    temporary = target.with_name(f".{secrets.token_hex(4)}.{target.name}")

    def clean_up() -> None:
        for leftover in _find_siblings(target, rf"\.[0-9a-f]{{8}}\.{re.escape(target.name)}"):
            with contextlib.suppress(OSError):
                leftover.unlink()

    with _lock_for_writing(target.parent, clean_up):
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
    """Write a directory atomically: yield a temporary directory that replaces `path` when the block succeeds.

    If the block fails, `path` is unchanged, and the temporary directory is removed. On Linux and macOS, the old and the
    new directory are swapped in one step if the file system supports it, so a killed process leaves either the old or
    the new directory. Elsewhere (on NFS, for example) the old directory is called `.<name>.<random>.old` for an instant
    between two renames.

    In an existing directory only the entries in `owns` are replaced. Other entries (README.md, .git) are preserved,
    except those that the block has written. Preserved entries are present at all times: before the swap, the new
    directory gets hard links to these entries, or copies where the file system has no links.

    A killed process can leave hidden directories next to `path`. The next write of `path` moves back the entries that
    exist only in an old directory, or the whole old directory if `path` is missing, and removes the leftovers. If
    another process is writing in the parent directory, a later write does this. Network file systems have the limits
    described in `atomic_file`.

    Args:
        path: the directory to write; its parents are created.
        marker: str, name of a file that every directory of this kind contains. A directory with entries of `owns` but
            without this file is of another kind, and is not replaced.
        owns: names that directories of this kind may contain at the top level.
        overwrite: bool, whether an existing directory that is not empty may be replaced.

    Raises:
        FileExistsError: If `path` is a file, is a directory of another kind, contains the working directory, or is not
            empty and `overwrite` is False. This is checked before and after the block.
        OSError: If the directory cannot be written.
        ValueError: If `path` is a URL.

    Example:

    ```python
    from lmzoo.files.atomic import atomic_directory

    with atomic_directory("report", marker="index.html", owns={"index.html", "images"}) as temporary:
        (temporary / "index.html").write_text("<h1>Report</h1>")
    ```
    """
    target = _resolve_path(path)
    make_directory(target.parent)
    hidden_name = f".{target.name}.{secrets.token_hex(4)}"
    temporary = target.with_name(f"{hidden_name}.new")
    old_directory = target.with_name(f"{hidden_name}.old")
    foreign_names: list[str] = []
    with _lock_for_writing(target.parent, lambda: _recover(target, owns)):
        check_replaceable(target, marker, owns, overwrite)
        try:
            temporary.mkdir()
            yield temporary
            check_replaceable(target, marker, owns, overwrite)
            for entry in temporary.rglob("*"):
                _sync(entry)
            if target.exists():
                foreign_names = _link_foreign(target, temporary, owns)
                _copy_mode(target, temporary)
            _sync(temporary)
            if not target.exists():
                temporary.rename(target)
            elif _exchange(temporary, target):
                old_directory = temporary
            else:
                target.rename(old_directory)
                try:
                    temporary.rename(target)
                except BaseException:
                    old_directory.rename(target)
                    raise
        except BaseException as error:
            _name_target(error, target, temporary)
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for entry_name in foreign_names:  # put back the originals, which may have changed since they were linked
            _exchange(old_directory / entry_name, target / entry_name)
        _sync(target.parent)
        if old_directory.exists():
            _move_foreign(old_directory, target, owns)
            shutil.rmtree(old_directory, ignore_errors=True)


@contextlib.contextmanager
def _lock_for_writing(folder: Path, clean_up: Callable[[], None]) -> Iterator[None]:
    """Hold a shared lock on a directory while writing in it; call `clean_up` first if no other process writes.

    The system releases the locks of killed processes. So if no process is writing, all temporary entries were left by
    killed processes.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # without locks on the file system, nothing is cleaned up
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                clean_up()
            for _ in range(_LOCK_ATTEMPTS):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _find_siblings(target: Path, pattern: str) -> list[Path]:
    """Return the paths of the entries next to `target` whose names match a regular expression."""
    return [target.with_name(name) for name in os.listdir(target.parent) if re.fullmatch(pattern, name)]


def _recover(target: Path, owns: Collection[str]) -> None:
    """Remove the leftovers of killed processes next to `target`, after moving back what only an old directory holds."""
    # `.tmp` is from earlier versions, and could hold the only copy of the user's entries after the swap.
    for leftover in _find_siblings(target, rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.(new|old|tmp)"):
        with contextlib.suppress(OSError):
            if leftover.suffix == ".old" and not target.exists():  # killed between two renames
                leftover.rename(target)
                continue
            if leftover.suffix != ".new" and target.is_dir():
                _move_foreign(leftover, target, owns)
            shutil.rmtree(leftover, ignore_errors=True)


def _link_foreign(target: Path, temporary: Path, owns: Collection[str]) -> list[str]:
    """Link the entries of `target` that are not in `owns` into `temporary`, and return their names.

    Names that `temporary` already contains are skipped.
    """
    foreign_names = [name for name in os.listdir(target) if name not in owns and not os.path.lexists(temporary / name)]
    for name in foreign_names:
        entry = target / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, temporary / name, symlinks=True, copy_function=link_or_copy)
        else:
            link_or_copy(entry, temporary / name)
    return foreign_names


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Create a hard link to a file, or a copy where the file system has no links; ignore a missing file.

    Raises:
        OSError: If the file cannot be copied, or is on another file system.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:  # removed since it was listed
        pass
    except OSError as error:
        if error.errno == errno.EXDEV:  # a mounted file system: its files would later be deleted
            raise
        shutil.copy2(source, target, follow_symlinks=False)


def _move_foreign(old_directory: Path, target: Path, owns: Collection[str]) -> None:
    """Move to `target` the entries of `old_directory` that are neither in `owns` nor in `target`."""
    for entry in old_directory.iterdir():
        if entry.name not in owns and not os.path.lexists(target / entry.name):
            entry.rename(target / entry.name)


def make_directory(directory: Path) -> None:
    """Create a directory and its parents.

    Raises:
        NotADirectoryError: If `directory` or one of its parents is a file.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(f"{directory} is not a directory, or lies in a file; give another path.") from error


def _name_target(error: BaseException, target: Path, temporary: Path) -> None:
    """Make an `OSError` name `target` instead of `temporary`, and say what to do on a full disk."""
    if not isinstance(error, OSError):
        return
    is_temporary = isinstance(error.filename, (str, os.PathLike)) and Path(error.filename).is_relative_to(temporary)
    if error.errno in NO_SPACE_ERRORS:
        reason = os.strerror(error.errno)
        error.strerror = f"{reason}: what was there before has not changed. Free some room, or choose another folder"
    if error.errno in NO_SPACE_ERRORS or is_temporary:
        error.filename = str(target)
        if error.filename2 is not None:
            del error.filename2


def check_replaceable(path: str | os.PathLike[str], marker: str, owns: Collection[str], overwrite: bool = True) -> None:
    """Check that `atomic_directory` may write to `path` with these arguments.

    Raises:
        FileExistsError: If `path` is a file, is a directory of another kind, contains the working directory, or is not
            empty and `overwrite` is False.
    """
    target = _resolve_path(path)
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file; give the path of a directory.")
    entry_names = set(os.listdir(target)) if target.exists() else set()
    if entry_names and not overwrite:
        raise PathExistsError(f"{target} exists already; pass `overwrite=True` or another directory.")
    if marker not in entry_names and (owned_entries := sorted(entry_names.intersection(owns))):
        raise FileExistsError(
            f"{target} is not replaced: it holds {owned_entries} but no {marker}. Give another directory."
        )
    if target.exists() and Path.cwd().is_relative_to(target):
        raise FileExistsError(f"{target} is the working directory or contains it; give another directory.")


def _exchange(first: Path, second: Path) -> bool:
    """Swap two files or directories in one step, if the system supports it, and return whether this succeeded."""
    libc = ctypes.CDLL(None)
    swap_flag = 2  # RENAME_EXCHANGE or RENAME_SWAP
    try:
        if sys.platform == "darwin":
            return libc.renamex_np(os.fsencode(first), os.fsencode(second), swap_flag) == 0
        working_directory = -100  # AT_FDCWD
        return (
            libc.renameat2(working_directory, os.fsencode(first), working_directory, os.fsencode(second), swap_flag)
            == 0
        )
    except AttributeError:  # an old C library
        return False


def _copy_mode(source: Path, target: Path) -> None:
    """Copy the permissions of `source` to `target`."""
    if source.stat().st_mode != target.stat().st_mode:  # file systems with only one mode refuse to set it
        shutil.copymode(source, target)


def _sync(path: Path) -> None:
    """Flush a file or directory to disk, if the file system supports it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
