"""Where `from_preset` and `save_to_preset` of tokenizers and preprocessors find what reads and writes presets.

Presets are built on tokenizers, so `lmzoo.presets` cannot be imported here: it registers its functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# `load_tokenizer`, `load_preprocessor` and `save`, see `lmzoo.presets.text_parts`.
PRESET_STORAGE: dict[str, Callable[..., Any]] = {}
