"""Registry of the functions that load and save presets of tokenizers and preprocessors.

Presets are built on tokenizers, so `lmzoo.presets` cannot be imported here. Instead it registers its functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Keys: `load_tokenizer`, `load_preprocessor` and `save`, see `lmzoo.presets.text_parts`.
PRESET_STORAGE: dict[str, Callable[..., Any]] = {}
