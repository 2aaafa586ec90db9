"""The cache of downloads: a directory for each archive or set of files, either complete or absent."""

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
    """Return the directory of downloads: $LMZOO_CACHE, or else lmzoo/ in $XDG_CACHE_HOME or ~/.cache."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("LMZOO_CACHE") or f"{caches}/lmzoo").expanduser().resolve()


def fetch_files(label: str, files: Mapping[str, RemoteFile]) -> Path:
    """Return a directory of the cache with these files; download them if they are not there yet, unpack archives.

    `label` begins the directory's name. Files called .zip, .tar.gz or .tgz are archives.

    Returns:
        The directory; if it holds nothing but one folder, as archives often do, that folder.

    Raises:
        ValueError: if a file is not the expected one, or an archive is damaged or not safe to unpack.
        OSError: if a file is neither in the cache nor available, or the cache cannot be written.
    """
    key = json.dumps({name: asdict(file) for name, file in files.items()}, sort_keys=True)
    label = re.sub(r"[^\w.-]+", "_", label).lstrip(".")[:80]
    folder = cache_directory() / f"{label}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        if constants.HF_HUB_OFFLINE:
            raise FileNotFoundError("It is not in the cache, and HF_HUB_OFFLINE is set.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():  # another process may have made it in the meantime
                _make(folder, files)
    return _content(folder)


def _make(folder: Path, files: Mapping[str, RemoteFile]) -> None:
    for unfinished in folder.parent.glob(f".{folder.name}.*.*"):  # left by a killed process
        shutil.rmtree(unfinished)
    parts = folder.with_name(f".{folder.name}.parts")
    parts.mkdir(exist_ok=True)
    for name, file in files.items():
        download(parts / name, file)
    with atomic_directory(folder, marker=MANIFEST_FILE, owns=()) as temporary:
        for name in files:
            if not name.endswith(ARCHIVES):
                shutil.move(parts / name, temporary)
                continue
            try:
                unpack(parts / name, temporary)
            except ValueError:
                (parts / name).unlink()  # otherwise the next attempt would take it for complete
                raise
        content = _content(temporary)
        if not (content / MANIFEST_FILE).exists():
            write_manifest(content)
    shutil.rmtree(parts)


def _content(folder: Path) -> Path:
    visible = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "__MACOSX"))]
    return visible[0] if len(visible) == 1 and visible[0].is_dir() else folder
