"""Files that may also be URLs of fsspec, such as s3://, gs:// and hdfs://: finding, reading and writing them."""

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

_BLOCK = 4 << 20  # bytes


class NamedBytes(io.BytesIO):
    """The content of a file, with its name for messages."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


def is_url(path: str | Path) -> bool:
    """Return whether a path is a URL."""
    return "://" in os.fspath(path)


def absolute(path: str | Path) -> str:
    """Return the path without links and "~", as a process with another working directory knows it; a URL as it is."""
    return os.fspath(path) if is_url(path) else os.path.realpath(os.path.expanduser(path))


def inside(folder: str | Path, name: str) -> str:
    """Return the path of a file in a folder, or its URL."""
    return f"{os.fspath(folder).rstrip('/')}/{name}" if is_url(folder) else os.path.join(folder, name)


def find_files(path: str | Path, accepts: Callable[[str], bool]) -> list[str]:
    """List the files that a path stands for, in the order of their names.

    Args:
        path: a file; a folder, whose accepted files are listed, including those in its subfolders; or a pattern such as
            `"part-*.jsonl"`, whose matches are files or folders.
        accepts: takes the path of a file in a folder, returns whether to list it.

    Returns:
        Paths, or URLs if `path` is one; none if a folder holds no accepted files.

    Raises:
        FileNotFoundError: if there is nothing of this name.
        ImportError: naming the package that fsspec needs for such URLs.
    """
    name = os.path.expanduser(os.fspath(path))
    if is_url(name):
        system, place = _system(name)
        is_folder, exists = system.isdir(place), system.exists(place)
        files = [system.unstrip_protocol(file) for file in (system.find(place) if is_folder else [])]
        matches = [] if exists else map(system.unstrip_protocol, system.glob(place))
    else:
        is_folder, exists = os.path.isdir(name), os.path.exists(name)
        files = [str(file) for file in Path(name).rglob("*") if file.is_file()] if is_folder else []
        matches = iter([] if exists else glob.glob(name, recursive=True))
    if is_folder:
        return sorted(filter(accepts, files), key=_parts)
    if exists:
        return [name]
    listed = sorted(matches, key=_parts)
    if not listed:
        raise FileNotFoundError(f"There is no {name}.")
    return [file for match in listed for file in find_files(match, accepts)]


def names_below(path: str | Path, files: Sequence[str]) -> list[str]:
    """Return the names of the files that `find_files` has listed for a path, relative to the folder that they are in.

    Of a pattern, that is the last folder before its first wildcard, so that the names do not depend on the matches.
    """
    base = os.path.expanduser(os.fspath(path))
    if list(files) == [base]:
        base = base.rpartition("/")[0]
    elif (wildcard := re.search(r"[*?\[]", base)) and not exists(base):
        base = base[: wildcard.start()].rpartition("/")[0]
    start, *places = (_system(name)[1] if is_url(name) else os.path.abspath(name) for name in (base, *files))
    return [os.path.relpath(place, start) for place in places]


def exists(path: str | Path) -> bool:
    """Return whether there is a file or folder."""
    if not is_url(path):
        return os.path.exists(os.path.expanduser(path))
    system, place = _system(os.fspath(path))
    return system.exists(place)


def size_of(path: str | Path) -> int:
    """Return the size of a file in bytes."""
    if not is_url(path):
        return os.path.getsize(path)
    system, place = _system(os.fspath(path))
    return system.size(place)


def remove(path: str | Path) -> None:
    """Remove a file, if it is there."""
    if not is_url(path):
        Path(path).unlink(missing_ok=True)
    elif exists(path):
        system, place = _system(os.fspath(path))
        system.rm_file(place)


def remove_folder(path: str | Path) -> None:
    """Remove a folder with all that is in it, if it is there."""
    if not is_url(path):
        shutil.rmtree(path, ignore_errors=True)
    elif exists(path):
        system, place = _system(os.fspath(path))
        system.rm(place, recursive=True)


def copy_folder(source: str | Path, target: str | Path, last: str) -> None:
    """Copy the files of a folder, each as by `whole_file`, and `last` after all others: where it is, they are, too.

    Raises:
        FileNotFoundError: if there is no such folder.
    """
    names = names_below(source, find_files(source, lambda name: True))
    for name in sorted(names, key=lambda name: name == last):
        with open_to_read(inside(source, name)) as file, whole_file(inside(target, name)) as copy:
            shutil.copyfileobj(file, copy, _BLOCK)


def open_to_read(path: str | Path) -> io.BufferedReader:
    """Open a file in binary mode.

    Raises:
        FileNotFoundError: naming the file, if there is none.
    """
    if not is_url(path):
        return open(os.path.expanduser(path), "rb")
    system, place = _system(os.fspath(path))
    try:
        return io.BufferedReader(system.open(place, "rb"))
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no {path}.") from None


def source_of(path: str | Path) -> Path | NamedBytes:
    """Return what readers take for a file: the path, or the content of a URL."""
    if not is_url(path):
        return Path(path)
    with open_to_read(path) as file:
        return NamedBytes(file.read(), os.fspath(path))


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a file to write, which appears under its name when the `with` block succeeds.

    A local file is written as by `lmzoo.files.atomic.atomic_file`. For a URL this is a transaction of fsspec: stores of
    objects show an object when its upload is complete, other systems rename.

    Example:

    ```python
    from lmzoo.files.urls import open_to_read, whole_file

    with whole_file("memory://answers.jsonl") as file:
        file.write(b"{}")
    open_to_read("memory://answers.jsonl").read()  # b"{}"
    ```
    """
    if not is_url(path):
        with atomic_file(path) as temporary, temporary.open("wb") as file:
            yield file
        return
    system, place = _system(os.fspath(path))
    system.makedirs(place.rpartition("/")[0], exist_ok=True)
    with system.transaction, system.open(place, "wb") as file:
        yield file


def load_json(path: str | Path) -> Any:
    """Read a file of JSON."""
    with open_to_read(path) as file:
        return json.load(file)


def save_json(path: str | Path, content: Any) -> None:
    """Write a file of JSON, as `whole_file` does."""
    with whole_file(path) as file:
        file.write(f"{json.dumps(content, indent=1)}\n".encode())


def _system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    from fsspec.core import url_to_fs

    return url_to_fs(url)


def _parts(path: str) -> list[str]:
    return path.split("/")
