"""Presets of word vectors, which tasks can also load, since they hold a `StaticBackbone`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.checkpoints.formats.hdf5 import Hdf5File
from lmzoo.checkpoints.formats.tensor_file import convert_damage_errors
from lmzoo.common.arguments import is_integer
from lmzoo.errors import PresetError
from lmzoo.families import StaticBackbone
from lmzoo.files.preset_files import ASSETS_DIR, MODEL_WEIGHTS_FILE, JsonFiles, read_json, write_json
from lmzoo.layers.initializers import skip_initial_values
from lmzoo.presets.catalog import open_preset
from lmzoo.presets.keras_preset import KerasPreset, save_preset
from lmzoo.registry.family import get_family
from lmzoo.static_vectors.subwords import Subwords
from lmzoo.static_vectors.vector_table import VectorTable
from lmzoo.text import Preprocessor, WordTokenizer
from lmzoo.text.tokenizers.word_level import NO_ENTRY
from lmzoo.text.validate_text import warn

_SUBWORDS_FILE = f"{ASSETS_DIR}/subwords.npy"
_LENGTHS_FILE = f"{ASSETS_DIR}/subwords.json"


def save_table(
    table: VectorTable, directory: str | Path, lowercase: bool, overwrite: bool = True, weights_dtype: str = "float32"
) -> None:
    """Write words, vectors and subwords as the preset of a `StaticBackbone`.

    Words that vocabulary files cannot hold, such as empty words or words that begin or end with spaces, are left out
    with a warning.

    Args:
        table: words with their vectors.
        directory: directory to write. If writing fails, an existing directory is left unchanged.
        lowercase: whether tasks look up words in lowercase.
        overwrite: whether an existing directory may be replaced.
        weights_dtype: dtype of the stored vectors; see `lmzoo.presets.keras_preset.save_preset`.

    Raises:
        FileExistsError: If `directory` exists, and `overwrite` is False or the directory is not a preset.
        ValueError: If `weights_dtype` is unknown.
    """
    family = get_family(StaticBackbone)
    row_by_word = {word: row for row, word in enumerate(table.words) if _fits_vocabulary_file(word)}
    if num_omitted := len(table.words) - len(row_by_word):
        warn(f"{num_omitted} of {len(table.words)} words are empty or begin or end with spaces, and are left out.")
    special_tokens = _get_special_tokens()
    # `load_table` takes the rows after special tokens with zeros, so tokens without a vector come first, and words that
    # are special tokens with zeros last.
    zero_special_tokens = [
        word for word in special_tokens if word in row_by_word and not table.vectors[row_by_word[word]].any()
    ]
    tokenizer = WordTokenizer(
        [
            *(token for token in special_tokens if token not in row_by_word),
            *(word for word in row_by_word if word not in zero_special_tokens),
            *zero_special_tokens,
        ],
        lowercase,
        **family.special_tokens,
    )
    vectors = np.zeros((tokenizer.vocabulary_size, table.vectors.shape[1]), "float32")
    rows = np.array([row_by_word.get(word, -1) for word in tokenizer.vocabulary])
    vectors[1:][rows >= 0] = table.vectors[rows[rows >= 0]]
    with skip_initial_values():
        backbone = StaticBackbone(
            vocabulary_size=len(vectors),
            hidden_dim=vectors.shape[1],
            dtype="float32",
            fine_tuning=StaticBackbone.usual_recipes,
        )
    backbone.token_embedding.embeddings.assign(vectors)
    preprocessor = Preprocessor(tokenizer, family.packing)

    def add_subwords(target: Path) -> None:
        if (subwords := table.subwords) is not None:
            write_json(target, _LENGTHS_FILE, {"min_length": subwords.min_length, "max_length": subwords.max_length})
            np.save(target / _SUBWORDS_FILE, subwords.vectors, allow_pickle=False)

    save_preset(backbone, directory, overwrite, preprocessor, add_subwords, weights_dtype)


def _get_special_tokens() -> tuple[str, ...]:
    return WordTokenizer(**get_family(StaticBackbone).special_tokens).special_tokens


def _fits_vocabulary_file(word: str) -> bool:
    return word == word.strip() and word not in ("", NO_ENTRY) and "\n" not in word


def load_table(preset: str | Path) -> VectorTable:
    """Load the word vectors of a preset, memory-mapped if they are stored in float32.

    Args:
        preset: path, handle or name of the preset.

    Raises:
        PresetError: If the preset cannot be found, holds another model, or one of its files is altered.
    """
    directory = open_preset(preset)
    source = KerasPreset(JsonFiles(directory))
    if not issubclass(source.backbone_class, StaticBackbone):
        raise PresetError(
            f"{str(preset)!r} holds a {source.backbone_class.__name__}, not word vectors. Use "
            "`lmzoo.models.TextEmbedder` for vectors that depend on the context."
        )
    words = source.tokenizer().vocabulary
    path = directory / MODEL_WEIGHTS_FILE
    with contextlib.closing(Hdf5File(path)) as file:
        table_names = [name for name in file.names() if file.shape(name)[:-1] == (len(words) + 1,)]
        if len(table_names) != 1:
            raise PresetError(
                f"{path} must hold one table of vectors for {len(words):,} words, got {len(table_names)}."
            )
        with convert_damage_errors(f"{path} cannot be read"):
            vectors = file.map(table_names[0])
    first_row = 1  # after padding
    while first_row < len(words) and words[first_row - 1] in _get_special_tokens() and not vectors[first_row].any():
        first_row += 1
    return VectorTable(words[first_row - 1 :], vectors[first_row:], _load_subwords(directory))


def _load_subwords(directory: Path) -> Subwords | None:
    """Load the n-gram vectors of a preset, memory-mapped, or return None if it has no subwords."""
    path = directory / _SUBWORDS_FILE
    if not path.is_file():
        return None
    lengths = read_json(directory, _LENGTHS_FILE)
    min_length: Any = lengths.get("min_length")
    max_length: Any = lengths.get("max_length")
    if not (is_integer(min_length, 0) and is_integer(max_length, 0)):
        raise PresetError(f"{directory / _LENGTHS_FILE} must hold `min_length` and `max_length`.")
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise PresetError(f"{path} cannot be read; fetch or save the preset again: {error}") from error
    if vectors.ndim != 2 or vectors.dtype != "float32":
        raise PresetError(f"{path} must hold float32 vectors (K, H), got {vectors.dtype} {vectors.shape}.")
    return Subwords(min_length, max_length, vectors)
