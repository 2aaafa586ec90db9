"""The files of a checkpoint, one or several with an index, and a check that they may be weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from lmzoo.errors import PresetError
from lmzoo.files.inside import file_in
from lmzoo.files.preset_files import read_json

T = TypeVar("T")

# Early versions of Git LFS wrote other addresses; all of them begin with one of these.
_LFS_POINTER = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
_WEB_PAGE = (b"<!doctype", b"<html", b"<head", b"<?xml")


def check_is_weights(path: Path) -> None:
    """Check that a file may hold weights, and is none of the things that are often found in place of them.

    Raises:
        PresetError: If there is no such file, it cannot be read, is empty, a Git LFS pointer, or a web page.
    """
    if not path.is_file():
        raise PresetError(f"{path} {'is not a file' if path.exists() else 'does not exist'}; expected weights.")
    try:
        with path.open("rb") as file:
            start = file.read(256)
    except OSError as error:
        raise PresetError(f"{path} cannot be read: {error.strerror}.") from error
    if not start:
        raise PresetError(f"{path} is empty; fetch it again.")
    if start.startswith(_LFS_POINTER):
        raise PresetError(
            f"{path} is a Git LFS pointer, not the weights: run `git lfs pull` in the repository, or fetch the file "
            "from its web page."
        )
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(_WEB_PAGE):
        raise PresetError(
            f"{path} is a web page, not the weights: the address that it was fetched from may need a login, or belong "
            "to a page about the file. Fetch it again."
        )


def tensors_in_files(
    path: Path,
    known_names: Sequence[str],
    open_file: Callable[[Path], Mapping[str, T]],
    spell: Callable[[str], str] = str,
) -> Mapping[str, T]:
    """Open a checkpoint in one file, or in several with an index, and return what is known about each tensor.

    `path` is a file, or a directory, in which the first one found of `known_names` counts; `*.index.json` is an index.
    `open_file` returns what is known about the tensors of a file, by name. `spell` turns a name in the index into one
    of those.

    Raises:
        PresetError: If the directory holds none of the names; an index is malformed, or names files elsewhere; or a
            tensor is not in the file that the index gives, or is in a file and not in the index.
    """
    if not path.is_dir():
        return open_file(path)
    name = next((name for name in known_names if os.path.lexists(path / name)), None)
    if name is None:
        raise PresetError(f"{path} holds no weights: expected {' or '.join(known_names)}.")
    file = file_in(path, name)
    if not name.endswith(".index.json"):
        return open_file(file)
    mapped = _read_index(path, name, spell)
    held = {shard: open_file(shard) for shard in dict.fromkeys(mapped.values())}
    for tensor, shard in mapped.items():
        if tensor not in held[shard]:
            raise PresetError(f"{shard} lacks {tensor!r}, which {name} lists there.")
    for shard, tensors in held.items():
        if strange := sorted(tensor for tensor in tensors if mapped.get(tensor) != shard):
            raise PresetError(f"{shard} holds {strange[0]!r}, which {name} does not list there.")
    return {tensor: held[shard][tensor] for tensor, shard in mapped.items()}


def _read_index(directory: Path, name: str, spell: Callable[[str], str]) -> dict[str, Path]:
    """Return the file of each tensor according to the index, by names that `spell` returns."""
    check_is_weights(directory / name)
    weight_map = read_json(directory, name).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise PresetError(f'{directory / name} must hold an object "weight_map": the name of a file for each tensor.')
    if not weight_map:
        raise PresetError(f"{directory / name} names no tensors.")
    mapped = {spell(tensor): file_in(directory, shard) for tensor, shard in weight_map.items()}
    if len(mapped) < len(weight_map):
        raise PresetError(f"{directory / name} names a tensor twice.")
    return mapped
