"""Checks that files of presets and checkpoints lie in their directory, even after links are followed."""

from __future__ import annotations

import os
from pathlib import Path

from lmzoo.errors import PresetError


def resolve_inside(directory: Path, name: str) -> Path:
    """Return the path of the file `name` in a directory, after checking that the file lies inside it.

    Symbolic links may lead to other files in the directory. Links out of the directory are refused, except in Hugging
    Face's cache, where `snapshots/<revision>/` and its subdirectories contain links into `blobs/` next to `snapshots/`.

    Raises:
        PresetError: If the name is a path, or the file is a link out of the directory.
    """
    if name in ("", ".", "..") or any(character in name for character in "/\\:\0"):
        raise PresetError(f"{directory} names {name!r} as one of its files: only names without a path are allowed.")
    check_inside(directory, directory / name)
    return directory / name


def check_inside(directory: Path, path: Path) -> None:
    """Check that a path does not lead out of a directory through links, except in Hugging Face's cache.

    Raises:
        PresetError: If the path leads out of the directory.
    """
    root = Path(os.path.realpath(directory))
    real_path = Path(os.path.realpath(path))
    allowed_roots = [root, *(parent.parent / "blobs" for parent in root.parents[:2] if parent.name == "snapshots")]
    if not any(real_path.is_relative_to(allowed_root) for allowed_root in allowed_roots):
        raise PresetError(
            f"{path} is a link to {real_path}, which is outside the directory, and is not followed. Put the file "
            "itself there."
        )


def has_file(directory: Path, name: str) -> bool:
    """Return whether a directory contains a file `name`.

    Raises:
        PresetError: If the name is a path, or the file is a link out of the directory.
    """
    return resolve_inside(directory, name).is_file()
