"""Loading and saving of tokenizers and preprocessors without a model."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TypeVar

from lmzoo.common.arguments import is_integer, require
from lmzoo.files.atomic import atomic_directory, link_or_copy
from lmzoo.files.manifest import write_manifest
from lmzoo.files.preset_files import (
    CONFIG_FILE,
    HEADS_DIR,
    MANIFEST_FILE,
    METADATA_FILE,
    MODEL_WEIGHTS_FILE,
    PREPROCESSOR_FILE,
    PRESET_ENTRIES,
    TASK_FILE,
    TASK_WEIGHTS_FILE,
    write_json,
)
from lmzoo.presets.keras_preset import KerasPreset, check_is_registered, get_versions, write_text_part
from lmzoo.presets.source import open_source
from lmzoo.text import Preprocessor, Tokenizer
from lmzoo.text.preset_storage import PRESET_STORAGE

_Part = TypeVar("_Part", Preprocessor, Tokenizer)
# The manifest is included so that the preset keeps its version when the manifest is written again.
_MODEL_FILES = (CONFIG_FILE, METADATA_FILE, MODEL_WEIGHTS_FILE, TASK_FILE, TASK_WEIGHTS_FILE, MANIFEST_FILE)


def load_tokenizer(preset: str | Path, cls: type[Tokenizer], family: str | None = None) -> Tokenizer:
    """Load the tokenizer of a preset or checkpoint.

    Args:
        preset: Name, handle or path, as for `from_preset`.
        cls: Expected class of the tokenizer, or a base class of it.
        family: Name of the family, such as "bert", for a checkpoint that does not specify it.

    Raises:
        ValueError: If there is no supported tokenizer, or it is of a different class.
    """
    with contextlib.closing(open_source(preset, family)) as source:
        tokenizer = source.tokenizer() if isinstance(source, KerasPreset) else source.preprocessor().tokenizer
    return _check_class(tokenizer, cls, preset)


def load_preprocessor(
    preset: str | Path, cls: type[Preprocessor], family: str | None = None, sequence_length: int | None = None
) -> Preprocessor:
    """Load the preprocessor of a preset or checkpoint.

    Args:
        preset: Name, handle or path, as for `from_preset`.
        cls: Expected class of the preprocessor, or a base class of it.
        family: Name of the family, such as "bert", for a checkpoint that does not specify it.
        sequence_length: Maximum number of tokens in a sequence, or None for the stored maximum.

    Raises:
        ValueError: If there is no supported preprocessor, it is of a different class, or `sequence_length` is invalid.
    """
    with contextlib.closing(open_source(preset, family)) as source:
        preprocessor = _check_class(source.preprocessor(), cls, preset)
    if sequence_length is not None:
        require(is_integer(sequence_length, 1), "sequence_length", "a positive integer", sequence_length)
        preprocessor.sequence_length = sequence_length
    return preprocessor


def _check_class(part: _Part, cls: type[_Part], preset: str | Path) -> _Part:
    if not isinstance(part, cls):
        kind = "Tokenizer" if isinstance(part, Tokenizer) else "Preprocessor"
        raise ValueError(
            f"The preset {str(preset)!r} holds a {type(part).__name__}, not a {cls.__name__}. Call "
            f"`{kind}.from_preset`, which loads any kind."
        )
    return part


def save_text_part(part: Preprocessor | Tokenizer, directory: str | Path, overwrite: bool = True) -> None:
    """Write a tokenizer or a preprocessor as a preset, or add it to the preset of a model.

    Args:
        part: Tokenizer or preprocessor.
        directory: Directory to write. The files of a model in it stay unchanged.
        overwrite: Whether to replace an existing preset.

    Raises:
        FileExistsError: If `directory` exists, and `overwrite` is False or the directory is not a preset.
        ValueError: If a class is not registered with Keras, a tokenizer would replace a preprocessor's tokenizer, or
            the directory holds several tasks.
    """
    check_is_registered(part)
    preset_path = Path(directory).expanduser()
    if (preset_path / HEADS_DIR).exists():
        raise ValueError(
            f"{preset_path} holds several tasks, whose preprocessors share a tokenizer. Save the tasks again, or "
            "choose another directory."
        )
    if isinstance(part, Tokenizer) and (preset_path / PREPROCESSOR_FILE).exists():
        raise ValueError(
            f"{preset_path} holds a preprocessor, of which the tokenizer is a part. Save a preprocessor with the new "
            "tokenizer, or choose another directory."
        )
    with atomic_directory(directory, marker=METADATA_FILE, owns=PRESET_ENTRIES, overwrite=overwrite) as target:
        for name in _MODEL_FILES:
            if (preset_path / name).exists():
                link_or_copy(preset_path / name, target / name)
        if not (target / METADATA_FILE).exists():
            write_json(target, METADATA_FILE, get_versions())
        write_text_part(part, target)
        write_manifest(target)


PRESET_STORAGE.update(load_tokenizer=load_tokenizer, load_preprocessor=load_preprocessor, save=save_text_part)
