"""The cache of downloads: one directory for each archive or set of files, complete or absent."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock
from huggingface_hub import constants

from lmzoo.files.archives import ARCHIVES, unpack
from lmzoo.files.atomic import atomic_directory
from lmzoo.files.download import RemoteFile, download
from lmzoo.files.manifest import write_manifest
from lmzoo.files.preset_files import MANIFEST_FILE


def cache_directory() -> Path:
    """Return the directory of the cache: $LMZOO_CACHE, or else lmzoo/ in $XDG_CACHE_HOME or ~/.cache."""
    cache_root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("LMZOO_CACHE") or f"{cache_root}/lmzoo").expanduser().resolve()


def fetch_files(label: str, files: Mapping[str, RemoteFile]) -> Path:
    """Return the directory of a set of files in the cache, after downloading and unpacking them if they are missing.

    Args:
        label: str, prefix of the directory's name.
        files: the files by name. Archives, whose names end in .zip, .tar.gz or .tgz, are unpacked.

    Returns:
        The directory or, if its only visible entry is a subdirectory, as in many archives, that subdirectory.

    Raises:
        ValueError: If a URL is not allowed, a file has the wrong size or SHA-256 digest, or an archive is damaged or
            unsafe.
        OSError: If a file is neither cached nor available, or the cache cannot be written.
    """
    key = json.dumps({name: asdict(file) for name, file in files.items()}, sort_keys=True)
    label = re.sub(r"[^\w.-]+", "_", label).lstrip(".")[:80]
    folder = cache_directory() / f"{label}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        if constants.HF_HUB_OFFLINE:
            raise FileNotFoundError("It is not in the cache, and HF_HUB_OFFLINE is set.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():  # another process may have created it while this one waited
                _create(folder, files)
    return _find_content(folder)


def _create(folder: Path, files: Mapping[str, RemoteFile]) -> None:
    """Download files into a new cache directory, and unpack archives."""
    for leftover in folder.parent.glob(f".{folder.name}.*.*"):  # left by a killed process
        shutil.rmtree(leftover)
    download_directory = folder.with_name(f".{folder.name}.parts")
    download_directory.mkdir(exist_ok=True)
    for name, file in files.items():
        download(download_directory / name, file)
    with atomic_directory(folder, marker=MANIFEST_FILE, owns=()) as temporary_directory:
        for name in files:
            if not name.endswith(ARCHIVES):
                shutil.move(download_directory / name, temporary_directory)
                continue
            try:
                unpack(download_directory / name, temporary_directory)
            except ValueError:
                (download_directory / name).unlink()  # so that the next attempt downloads it again
                raise
        content_folder = _find_content(temporary_directory)
        if not (content_folder / MANIFEST_FILE).exists():
            write_manifest(content_folder)
    shutil.rmtree(download_directory)


def _find_content(folder: Path) -> Path:
    """Return the only entry of a directory if it is a subdirectory, or else the directory itself.

    Hidden entries and `__MACOSX` do not count.
    """
    visible_entries = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "__MACOSX"))]
    return visible_entries[0] if len(visible_entries) == 1 and visible_entries[0].is_dir() else folder
