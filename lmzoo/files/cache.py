"""What was fetched from web servers: one directory for an archive or a set of files, complete or not there at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from lmzoo.files.archives import ARCHIVES, unpack
from lmzoo.files.atomic import atomic_directory
from lmzoo.files.download import RemoteFile, check_address, download
from lmzoo.files.manifest import write_manifest
from lmzoo.files.preset_files import MANIFEST_FILE


def cache_directory() -> Path:
    """Where downloads are kept: $LMZOO_CACHE, or else lmzoo/ in $XDG_CACHE_HOME or ~/.cache."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("LMZOO_CACHE") or f"{caches}/lmzoo").expanduser().resolve()


def fetch_archive(archive: RemoteFile) -> Path:
    """The directory with the files of an archive; its only folder, if there is nothing beside it.

    Args:
        archive: a .zip, .tar.gz or .tgz file.

    Raises:
        ValueError: if it is no such archive, not what was expected, or not safe to unpack.
        OSError: if it is neither in the cache nor to be had, or the cache cannot be written.
    """
    name = PurePosixPath(urlsplit(archive.url).path).name
    if not name.endswith(ARCHIVES):
        raise ValueError(f"{archive.url} names no archive: its path must end in one of {', '.join(ARCHIVES)}.")
    return _cached(name, {name: archive}, unpack)


def fetch_files(files: Mapping[str, RemoteFile]) -> Path:
    """A directory with these files, each under its name.

    Raises:
        ValueError: if one is not what was expected.
        OSError: if one is neither in the cache nor to be had, or the cache cannot be written.
    """
    first = next(iter(files.values()))
    return _cached(PurePosixPath(urlsplit(first.url).path).parent.name, files, shutil.move)


def _cached(label: str, files: Mapping[str, RemoteFile], place: Callable[[Path, Path], object]) -> Path:
    """The directory in the cache that `place` makes of the files, one by one; they are fetched if it is not there."""
    for file in files.values():
        check_address(file.url)
    key = json.dumps({name: asdict(file) for name, file in files.items()}, sort_keys=True)
    label = re.sub(r"[^\w.-]+", "_", label).lstrip(".")[:80]
    folder = cache_directory() / f"{label}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            raise FileNotFoundError("It is not in the cache, and HF_HUB_OFFLINE is set.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():  # somebody else may just have made it
                _make(folder, files, place)
    return _unwrapped(folder)


def _make(folder: Path, files: Mapping[str, RemoteFile], place: Callable[[Path, Path], object]) -> None:
    for unfinished in folder.parent.glob(f".{folder.name}.*.tmp"):  # by a process that was killed
        shutil.rmtree(unfinished)
    parts = folder.with_name(f".{folder.name}.parts")
    parts.mkdir(exist_ok=True)
    for name, file in files.items():
        download(parts / name, file)
    with atomic_directory(folder, marker=MANIFEST_FILE, owns=()) as temporary:
        for name in files:
            try:
                place(parts / name, temporary)
            except ValueError:
                (parts / name).unlink()  # or the next attempt would take it for complete
                raise
        content = _unwrapped(temporary)
        if not (content / MANIFEST_FILE).exists():
            write_manifest(content)
    shutil.rmtree(parts)


def _unwrapped(folder: Path) -> Path:
    visible = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "__MACOSX"))]
    return visible[0] if len(visible) == 1 and visible[0].is_dir() else folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits for other processes and threads; a lock ends with its process, so that none is left over.

    Where the system has no such locks (Windows), two may fetch the same thing at once.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
