"""Presets of word vectors: directories with checksums, whose vectors are mapped into memory."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.common.arguments import is_integer
from lmzoo.errors import PresetError
from lmzoo.files.atomic import atomic_directory, check_room
from lmzoo.files.manifest import write_manifest
from lmzoo.files.preset_files import ASSETS_DIR, CONFIG_FILE, METADATA_FILE, PRESET_ENTRIES, read_json, write_json
from lmzoo.presets.catalog import open_preset
from lmzoo.presets.keras_preset import versions
from lmzoo.static_vectors.subwords import Subwords
from lmzoo.static_vectors.vector_table import VectorTable

_KIND = "word vectors"
_WORDS_FILE = f"{ASSETS_DIR}/words.json"
_VECTORS_FILE = f"{ASSETS_DIR}/vectors.npy"
_SUBWORDS_FILE = f"{ASSETS_DIR}/subwords.npy"


def save_table(table: VectorTable, directory: str | Path, overwrite: bool = True) -> None:
    """Write words, vectors and subwords as a preset.

    Args:
        table: words with their vectors.
        directory: directory to write. If writing fails, an existing directory is left unchanged.
        overwrite: whether an existing directory may be replaced.

    Raises:
        FileExistsError: If the directory may not be replaced.
    """
    subwords = table.subwords
    config: dict[str, Any] = {"kind": _KIND, "hidden_dim": table.vectors.shape[1], "subwords": None}
    arrays = {_VECTORS_FILE: table.vectors}
    if subwords is not None:
        config["subwords"] = {"min_length": subwords.min_length, "max_length": subwords.max_length}
        arrays[_SUBWORDS_FILE] = subwords.vectors
    with atomic_directory(directory, marker=METADATA_FILE, owns=PRESET_ENTRIES, overwrite=overwrite) as target:
        write_json(target, CONFIG_FILE, config)
        count = sum(math.prod(array.shape) for array in arrays.values())
        write_json(target, METADATA_FILE, {"kind": _KIND, "parameter_count": count, **versions()})
        (target / ASSETS_DIR).mkdir()
        check_room(target, 4 * count)
        for name, array in arrays.items():
            np.save(target / name, array, allow_pickle=False)
        (target / _WORDS_FILE).write_text(json.dumps(list(table.words), ensure_ascii=False, indent=0), "utf-8")
        write_manifest(target)


def load_table(preset: str | Path) -> VectorTable:
    """Load a preset of word vectors, with the vectors mapped into memory.

    Args:
        preset: path, handle or name of the preset.

    Raises:
        PresetError: If the preset cannot be found, holds something else, or one of its files is altered.
    """
    directory = open_preset(preset)
    config = read_json(directory, CONFIG_FILE)
    if config.get("kind") != _KIND:
        raise PresetError(
            f"{str(preset)!r} holds no word vectors. Load it with `lmzoo.models.TextEmbedder.from_preset` or the class "
            "of another task."
        )
    words = _read_words(directory / _WORDS_FILE)
    vectors = _map_vectors(directory / _VECTORS_FILE)
    if len(words) != len(vectors):
        raise PresetError(f"{directory / _WORDS_FILE} holds {len(words):,} words for {len(vectors):,} vectors.")
    if (lengths := config.get("subwords")) is None:
        return VectorTable(words, vectors)
    sizes = [lengths.get(name) for name in ("min_length", "max_length")] if isinstance(lengths, dict) else [None]
    if not all(is_integer(size, 0) for size in sizes):
        raise PresetError(f"{directory / CONFIG_FILE}: `subwords` must hold `min_length` and `max_length`.")
    return VectorTable(words, vectors, Subwords(*sizes, _map_vectors(directory / _SUBWORDS_FILE)))


def _read_words(path: Path) -> list[str]:
    """Read a JSON list of strings."""
    try:
        words = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PresetError(f"{path} cannot be read as JSON ({error}); save the preset again.") from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise PresetError(f"{path} must hold a list of strings.")
    return words


def _map_vectors(path: Path) -> np.ndarray:
    """Map a numpy file of vectors into memory, float32 (n, H)."""
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise PresetError(f"{path} cannot be read; fetch or save the preset again: {error}") from error
    if vectors.ndim != 2 or vectors.dtype != "float32":
        raise PresetError(f"{path} must hold float32 vectors (n, H), got {vectors.dtype} {vectors.shape}.")
    return vectors
