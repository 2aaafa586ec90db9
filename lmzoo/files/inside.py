"""Files that must lie in a directory: those of presets and checkpoints, of which links could lead out."""

from __future__ import annotations

import os
from pathlib import Path

from lmzoo.errors import PresetError


def file_in(directory: Path, name: str) -> Path:
    """Return the path of a file in a directory, in which it must really lie.

    A symbolic link may lead to another file in the directory. One that leads out of it is refused, except in Hugging
    Face's cache, where `snapshots/<revision>/` and its folders hold links into `blobs/` next to `snapshots/`.

    Raises:
        PresetError: If the name is a path, or the file is a link out of the directory.
    """
    if name in ("", ".", "..") or any(mark in name for mark in "/\\:\0"):
        raise PresetError(f"{directory} names {name!r} as one of its files: only names without a path are allowed.")
    check_inside(directory, directory / name)
    return directory / name


def check_inside(directory: Path, path: Path) -> None:
    """Refuse a symbolic link out of a directory, except in Hugging Face's cache.

    Raises:
        PresetError: If the file really lies elsewhere.
    """
    root = Path(os.path.realpath(directory))
    real = Path(os.path.realpath(path))
    homes = [root, *(parent.parent / "blobs" for parent in root.parents[:2] if parent.name == "snapshots")]
    if not any(real.is_relative_to(home) for home in homes):
        raise PresetError(
            f"{path} is a link to {real}, which is outside the directory, and is not followed. Put the file itself "
            "there."
        )


def has_file(directory: Path, name: str) -> bool:
    """Return whether a file is in a directory.

    Raises:
        PresetError: If it is a link out of the directory.
    """
    return file_in(directory, name).is_file()
