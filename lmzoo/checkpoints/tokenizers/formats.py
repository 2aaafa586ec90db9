"""The registry of tokenizer file formats, one for each tokenizer class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import JsonObject
from lmzoo.checkpoints.tokenizers.byte_pair import BytePairFormat, CharacterPairFormat, NormalizedBytePairFormat
from lmzoo.checkpoints.tokenizers.format import PIPELINE_FILE, TokenizerFormat
from lmzoo.checkpoints.tokenizers.sentencepiece import (
    DebertaV3Format,
    MarianFormat,
    SentencePieceFormat,
    T5Format,
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
    NormalizedBytePairFormat,
    CharacterPairFormat,
    SentencePieceFormat,
    XlnetFormat,
    XlmRobertaFormat,
    DebertaV3Format,
    T5Format,
    MarianFormat,
)
_FORMATS: dict[type[Tokenizer], TokenizerFormat[Any]] = {cls.tokenizer: cls() for cls in _CLASSES}


def get_format(cls: type[Tokenizer]) -> TokenizerFormat[Any]:
    """Return the file format of a tokenizer class.

    Raises:
        PresetError: If other libraries have no format for the class.
    """
    if cls not in _FORMATS:
        raise PresetError(f"No format of another library can hold a {cls.__name__}.")
    return _FORMATS[cls]


def holds_tokenizer(directory: Path, cls: type[Tokenizer]) -> bool:
    """Return whether a directory holds the files of a tokenizer class.

    If there is a `tokenizer.json`, its type of model decides; otherwise, the names of the files decide.

    Raises:
        PresetError: If `tokenizer.json` is malformed or its model is not supported.
    """
    format = get_format(cls)
    if has_file(directory, PIPELINE_FILE):
        pipeline = read_json(directory, PIPELINE_FILE)
        return select_format(pipeline, directory, format) is format
    return bool(format.find_files(directory))


def select_format(pipeline: JsonObject, directory: Path, preferred: TokenizerFormat[Any]) -> TokenizerFormat[Any]:
    """Return the format for the model in `tokenizer.json`: `preferred` if its type matches, else the first that does.

    Args:
        pipeline: Content of `tokenizer.json`.
        directory: Directory of the file, for messages.
        preferred: Preferred format.

    Raises:
        PresetError: If the file is malformed or its model is not supported.
    """
    file = directory / PIPELINE_FILE
    model = pipeline.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), (dict, list)):
        raise PresetError(f'{file} must hold an object "model" with a "vocab".')
    default_type = (
        "BPE" if "merges" in model else "Unigram" if "unk_id" in model else "WordPiece"
    )  # old files state no type
    model_type = model.get("type") or default_type
    if preferred.model_type == model_type:
        return preferred
    formats_by_type = {
        format.model_type: format for format in reversed(_FORMATS.values())
    }  # the first format of each type
    if model_type not in formats_by_type:
        raise PresetError(f"{file} holds a {model_type!r} model; supported are {', '.join(reversed(formats_by_type))}.")
    return formats_by_type[model_type]
