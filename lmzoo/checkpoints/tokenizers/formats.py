"""The formats of our tokenizers in the files of other libraries: one per class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import JsonObject
from lmzoo.checkpoints.tokenizers.byte_pair import BytePairFormat, CharacterPairFormat
from lmzoo.checkpoints.tokenizers.format import PIPELINE_FILE, TokenizerFormat
from lmzoo.checkpoints.tokenizers.sentencepiece import (
    DebertaV3Format,
    MarianFormat,
    SentencePieceFormat,
    XlmRobertaFormat,
    XlnetFormat,
)
from lmzoo.checkpoints.tokenizers.wordpiece import WordPieceFormat
from lmzoo.errors import PresetError
from lmzoo.files.inside import has_file
from lmzoo.files.preset_files import read_json
from lmzoo.text import Tokenizer

_CLASSES: tuple[type[TokenizerFormat[Any]], ...] = (
    WordPieceFormat,
    BytePairFormat,
    CharacterPairFormat,
    SentencePieceFormat,
    XlnetFormat,
    XlmRobertaFormat,
    DebertaV3Format,
    MarianFormat,
)
_FORMATS: dict[type[Tokenizer], TokenizerFormat[Any]] = {cls.tokenizer: cls() for cls in _CLASSES}


def format_of(cls: type[Tokenizer]) -> TokenizerFormat[Any]:
    """Return the format of a class of tokenizers.

    Raises:
        PresetError: If there is none.
    """
    if cls not in _FORMATS:
        raise PresetError(f"No format of another library can hold a {cls.__name__}.")
    return _FORMATS[cls]


def holds_tokenizer(directory: Path, cls: type[Tokenizer]) -> bool:
    """Return whether a directory holds the files of a tokenizer of a class, without reading its vocabulary."""
    format = format_of(cls)
    if has_file(directory, PIPELINE_FILE):
        pipeline = read_json(directory, PIPELINE_FILE)
        return format_in(pipeline, directory, format) is format
    return bool(format.find_files(directory))


def format_in(pipeline: JsonObject, directory: Path, wanted: TokenizerFormat[Any]) -> TokenizerFormat[Any]:
    """Return the format that the content of `tokenizer.json` asks for, the `wanted` one if it fits.

    Raises:
        PresetError: If there is none.
    """
    file = directory / PIPELINE_FILE
    model = pipeline.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), (dict, list)):
        raise PresetError(f'{file} must hold an object "model" with a "vocab".')
    guess = "BPE" if "merges" in model else "Unigram" if "unk_id" in model else "WordPiece"  # for old files
    name = model.get("type") or guess
    if wanted.model_type == name:
        return wanted
    known = {format.model_type: format for format in reversed(_FORMATS.values())}  # of several, the first one
    if name not in known:
        raise PresetError(f"{file} holds a {name!r} model; supported are {', '.join(reversed(known))}.")
    return known[name]
