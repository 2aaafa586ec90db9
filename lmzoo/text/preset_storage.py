"""Where `from_preset` and `save_to_preset` of tokenizers and preprocessors find what reads and writes presets.

Presets are built on tokenizers, so `lmzoo.presets` cannot be imported here: it registers its functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PresetStorage:
    """Functions that load and save tokenizers and preprocessors.

    Attributes:
        load_tokenizer: see `lmzoo.presets.text_parts.load_tokenizer`.
        load_preprocessor: see `lmzoo.presets.text_parts.load_preprocessor`.
        save: see `lmzoo.presets.text_parts.save_text_part`.
    """

    load_tokenizer: Callable[..., Any]
    load_preprocessor: Callable[..., Any]
    save: Callable[..., None]


_REGISTERED: list[PresetStorage] = []


def register_preset_storage(storage: PresetStorage) -> None:
    """Set the functions that load and save tokenizers and preprocessors."""
    _REGISTERED[:] = [storage]


def preset_storage() -> PresetStorage:
    """Return the registered functions."""
    return _REGISTERED[0]
