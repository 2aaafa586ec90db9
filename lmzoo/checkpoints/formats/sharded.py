"""Opening of weights in one file, or in several shards with an index."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from lmzoo.errors import PresetError
from lmzoo.files.inside import resolve_inside
from lmzoo.files.preset_files import read_json

T = TypeVar("T")

# Prefixes of all Git LFS pointers; early versions of Git LFS used another address.
_LFS_POINTER = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
_WEB_PAGE = (b"<!doctype", b"<html", b"<head", b"<?xml")


def check_is_weights(path: Path) -> None:
    """Check that a file exists, is not empty, and is neither a Git LFS pointer nor a web page.

    Raises:
        PresetError: If a check fails or the file cannot be read; the message says how to get the weights.
    """
    if not path.is_file():
        raise PresetError(f"{path} {'is not a file' if path.exists() else 'does not exist'}; expected weights.")
    try:
        with path.open("rb") as file:
            first_bytes = file.read(256)
    except OSError as error:
        raise PresetError(f"{path} cannot be read: {error.strerror}.") from error
    if not first_bytes:
        raise PresetError(f"{path} is empty; fetch it again.")
    if first_bytes.startswith(_LFS_POINTER):
        raise PresetError(
            f"{path} is a Git LFS pointer, not the weights: run `git lfs pull` in the repository, or fetch the file "
            "from its web page."
        )
    if first_bytes.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(_WEB_PAGE):
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
    """Open weights in one file, or in shards with an index, and return an entry for each tensor by name.

    Args:
        path: Path of a file, or of a directory.
        known_names: File names to try in a directory, in order of preference. `*.index.json` is an index of shards.
        open_file: Function that opens a file and returns an entry for each of its tensors, by name.
        spell: Function from a tensor name in the index to the name that `open_file` returns.

    Raises:
        PresetError: If the directory holds none of `known_names`; if the index is malformed or names files outside the
            directory; or if the index and the shards list different tensors.
    """
    if not path.is_dir():
        return open_file(path)
    file_name = next((file_name for file_name in known_names if os.path.lexists(path / file_name)), None)
    if file_name is None:
        raise PresetError(f"{path} holds no weights: expected {' or '.join(known_names)}.")
    file = resolve_inside(path, file_name)
    if not file_name.endswith(".index.json"):
        return open_file(file)
    shard_by_tensor = _read_index(path, file_name, spell)
    tensors_by_shard = {shard: open_file(shard) for shard in dict.fromkeys(shard_by_tensor.values())}
    for tensor, shard in shard_by_tensor.items():
        if tensor not in tensors_by_shard[shard]:
            raise PresetError(f"{shard} lacks {tensor!r}, which {file_name} lists there.")
    for shard, tensors in tensors_by_shard.items():
        if unlisted_tensors := sorted(tensor for tensor in tensors if shard_by_tensor.get(tensor) != shard):
            raise PresetError(f"{shard} holds {unlisted_tensors[0]!r}, which {file_name} does not list there.")
    return {tensor: tensors_by_shard[shard][tensor] for tensor, shard in shard_by_tensor.items()}


def _read_index(directory: Path, file_name: str, spell: Callable[[str], str]) -> dict[str, Path]:
    """Return a dict from each tensor's name, as converted by `spell`, to the path of its shard in an index file.

    Raises:
        PresetError: If the index is malformed, two names are equal after `spell`, or a file is outside the directory.
    """
    check_is_weights(directory / file_name)
    weight_map = read_json(directory, file_name).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise PresetError(
            f'{directory / file_name} must hold an object "weight_map": the name of a file for each tensor.'
        )
    if not weight_map:
        raise PresetError(f"{directory / file_name} names no tensors.")
    shard_by_tensor = {spell(tensor): resolve_inside(directory, shard) for tensor, shard in weight_map.items()}
    if len(shard_by_tensor) < len(weight_map):
        raise PresetError(f"{directory / file_name} names a tensor twice.")
    return shard_by_tensor
