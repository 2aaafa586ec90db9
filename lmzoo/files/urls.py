"""Finding, reading and writing files at local paths and at fsspec URLs, such as s3://, gs:// and hdfs://."""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from lmzoo.files.atomic import atomic_file

_BLOCK_BYTES = 4 << 20


class NamedBytes(io.BytesIO):
    """The content of a file in memory, with its name for error messages."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


def is_url(path: str | Path) -> bool:
    """Return whether a path is a URL, such as s3://bucket/file."""
    return "://" in os.fspath(path)


def make_absolute(path: str | Path, resolve_links: bool = True) -> str:
    """Return the absolute form of a local path, without "~"; return a URL unchanged.

    Args:
        path: path or URL.
        resolve_links: whether to replace links by their targets, so that one file has one path. Since the suffix of a
            file's name determines its format, read a file under its own name, not its target's.
    """
    if is_url(path):
        return os.fspath(path)
    expanded_path = os.path.expanduser(path)
    return os.path.realpath(expanded_path) if resolve_links else os.path.abspath(expanded_path)


def is_in_folder(path: str | Path, folder: str | Path) -> bool:
    """Return whether a path or URL is a folder, or is in it at any depth, after links are followed."""
    return f"{make_absolute(path)}/".startswith(f"{make_absolute(folder).rstrip('/')}/")


def join_path(folder: str | Path, name: str) -> str:
    """Join a directory, given as a path or a URL, and the name of a file in it."""
    return f"{os.fspath(folder).rstrip('/')}/{name}" if is_url(folder) else os.path.join(folder, name)


def find_files(
    path: str | Path, accepts: Callable[[str], bool], skipped_prefixes: tuple[str, ...] = (".",)
) -> list[str]:
    """List the files at a path, in a directory, or matching a pattern, sorted by name.

    Links to directories are followed, and each directory is listed once.

    Args:
        path: a file; a directory, whose accepted files are listed, including those in subdirectories; or a pattern such
            as `"part-*.jsonl"`, whose matches are files or directories.
        accepts: predicate that takes the path of a file in a directory, and returns whether to list the file.
        skipped_prefixes: in a directory, files and subdirectories are skipped if their names begin with one of these.

    Returns:
        Paths, or URLs if `path` is a URL; empty if a directory contains no accepted files.

    Raises:
        FileNotFoundError: If nothing exists at the path or matches the pattern.
        ImportError: If fsspec needs another package for such URLs; the message names it.
    """
    location = os.path.expanduser(os.fspath(path))
    if is_url(location):
        file_system, remote_path = _resolve_url(location)
        is_folder = file_system.isdir(remote_path)
        path_exists = file_system.exists(remote_path)
        listed_paths = file_system.find(remote_path) if is_folder else []
        files = [
            file_system.unstrip_protocol(file)
            for file in listed_paths
            if not is_skipped(file, remote_path, skipped_prefixes)
        ]
        matches = [] if path_exists else map(file_system.unstrip_protocol, file_system.glob(remote_path))
    else:
        is_folder = os.path.isdir(location)
        path_exists = os.path.exists(location)
        files = list(_walk_files(location, skipped_prefixes)) if is_folder else []
        matches = iter([] if path_exists else glob.glob(location, recursive=True))
    if is_folder:
        return sorted(filter(accepts, files), key=_split_path)
    if path_exists:
        return [location]
    sorted_matches = sorted(matches, key=_split_path)
    if not sorted_matches:
        raise FileNotFoundError(f"There is no {location}.")
    return [file for match in sorted_matches for file in find_files(match, accepts, skipped_prefixes)]


def is_skipped(path: str | Path, folder: str | Path, prefixes: tuple[str, ...]) -> bool:
    """Return whether a path in `folder` has a name, or is below a directory with one, that begins with a prefix."""
    relative_path = os.path.relpath(make_absolute(path), make_absolute(folder))
    return any(part.startswith(prefixes) for part in _split_path(relative_path) if part != os.curdir)


def list_relative_names(path: str | Path, files: Sequence[str]) -> list[str]:
    """Return the names of files from `find_files` relative to the directory that was searched.

    For a pattern, names are relative to the last directory before the first wildcard, whatever the matches are.

    Args:
        path: the argument of `find_files`.
        files: the result of `find_files`.
    """
    base = os.path.expanduser(os.fspath(path))
    if list(files) == [base]:
        base = base.rpartition("/")[0]
    elif (wildcard := re.search(r"[*?\[]", base)) and not exists(base):
        base = base[: wildcard.start()].rpartition("/")[0]
    base_path, *paths = (_resolve_url(name)[1] if is_url(name) else os.path.abspath(name) for name in (base, *files))
    return [os.path.relpath(file_path, base_path) for file_path in paths]


def exists(path: str | Path) -> bool:
    """Return whether a file or directory exists at a path or URL."""
    if not is_url(path):
        return os.path.exists(os.path.expanduser(path))
    file_system, remote_path = _resolve_url(os.fspath(path))
    return file_system.exists(remote_path)


def get_size(path: str | Path) -> int:
    """Return the size in bytes of a file at a path or URL."""
    if not is_url(path):
        return os.path.getsize(path)
    file_system, remote_path = _resolve_url(os.fspath(path))
    return file_system.size(remote_path)


def get_modification_time(path: str | Path) -> float:
    """Return the time of a file's last change in seconds since 1970, or 0 if the file system does not record it.

    Raises:
        FileNotFoundError: If the file does not exist.
    """
    if not is_url(path):
        return os.path.getmtime(path)
    file_system, remote_path = _resolve_url(os.fspath(path))
    try:
        return file_system.modified(remote_path).timestamp()
    except NotImplementedError:
        return 0.0


def remove(path: str | Path) -> None:
    """Remove a file, if it exists."""
    if not is_url(path):
        Path(path).unlink(missing_ok=True)
    elif exists(path):
        file_system, remote_path = _resolve_url(os.fspath(path))
        file_system.rm_file(remote_path)


def remove_folder(path: str | Path) -> None:
    """Remove a directory with all its content, if it exists, ignoring errors in a local directory."""
    if not is_url(path):
        shutil.rmtree(path, ignore_errors=True)
    elif exists(path):
        file_system, remote_path = _resolve_url(os.fspath(path))
        file_system.rm(remote_path, recursive=True)


def copy_folder(source: str | Path, target: str | Path, last: str) -> None:
    """Copy the files of a directory, except hidden files, each atomically, and the file `last` after all other files.

    The copy is therefore complete once `last` exists in `target`.

    Args:
        source: path or URL of the directory to copy.
        target: path or URL of the new directory.
        last: str, name of the file to copy last.

    Raises:
        FileNotFoundError: If `source` does not exist.
    """
    names = list_relative_names(source, find_files(source, lambda name: True))
    for name in sorted(names, key=lambda name: name == last):
        with open_to_read(join_path(source, name)) as source_file, whole_file(join_path(target, name)) as target_file:
            shutil.copyfileobj(source_file, target_file, _BLOCK_BYTES)


def open_to_read(path: str | Path) -> io.BufferedReader:
    """Open a file at a path or URL for reading in binary mode.

    Raises:
        FileNotFoundError: If the file does not exist.
    """
    if not is_url(path):
        return open(os.path.expanduser(path), "rb")
    file_system, remote_path = _resolve_url(os.fspath(path))
    try:
        return io.BufferedReader(file_system.open(remote_path, "rb"))
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no {path}.") from None


def read_source_file(path: str | Path) -> Path | NamedBytes:
    """Return a local path as a `Path`, or the content of a URL as `NamedBytes`."""
    if not is_url(path):
        return Path(path)
    with open_to_read(path) as file:
        return NamedBytes(file.read(), os.fspath(path))


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Write a file atomically: yield a binary file that appears at `path` when the block succeeds.

    A local file is written with `lmzoo.files.atomic.atomic_file`, a URL in an fsspec transaction: object stores show an
    object once its upload is complete, and other file systems rename a temporary file.

    Example:

    ```python
    from lmzoo.files.urls import open_to_read, whole_file

    with whole_file("memory://answers.jsonl") as file:
        file.write(b"{}")
    open_to_read("memory://answers.jsonl").read()  # b"{}"
    ```
    """
    if not is_url(path):
        with atomic_file(path) as temporary_path, temporary_path.open("wb") as file:
            yield file
        return
    file_system, remote_path = _resolve_url(os.fspath(path))
    file_system.makedirs(remote_path.rpartition("/")[0], exist_ok=True)
    with file_system.transaction, file_system.open(remote_path, "wb") as file:
        yield file


def load_json(path: str | Path) -> Any:
    """Read a JSON file at a path or URL."""
    with open_to_read(path) as file:
        return json.load(file)


def save_json(path: str | Path, content: Any) -> None:
    """Write a JSON file at a path or URL atomically."""
    with whole_file(path) as file:
        file.write(f"{json.dumps(content, indent=1)}\n".encode())


def _resolve_url(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path of the URL in it."""
    from fsspec.core import url_to_fs

    return url_to_fs(url)


def _walk_files(folder: str, skipped_prefixes: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths of all files in a local directory; see `find_files` for `skipped_prefixes`.

    Directories behind links come last, and only if they were not listed before, so that links cannot form a cycle.
    """
    pending_folders = [folder]  # grows in the loop
    visited_folders = set()
    for start in pending_folders:
        for parent, folder_names, file_names in os.walk(start):
            folder_names[:] = sorted(name for name in folder_names if not name.startswith(skipped_prefixes))
            real_parent = os.path.realpath(parent)
            if real_parent in visited_folders:
                folder_names.clear()
                continue
            visited_folders.add(real_parent)
            subfolders = [os.path.join(parent, name) for name in folder_names]
            pending_folders += filter(os.path.islink, subfolders)
            files = [Path(parent, name) for name in file_names if not name.startswith(skipped_prefixes)]
            yield from (str(file) for file in files if file.is_file())


def _split_path(path: str) -> list[str]:
    """Return the parts of a path, as a sort key that keeps the files of a directory together."""
    return path.split("/")
