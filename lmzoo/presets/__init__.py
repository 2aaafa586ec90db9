"""Presets: finding, fetching, loading, checking, converting and listing them."""

from lmzoo.errors import PresetError
from lmzoo.files.manifest import verify_manifest, write_manifest
from lmzoo.presets import text_parts  # noqa: F401 - registers how tokenizers and preprocessors are loaded
from lmzoo.presets.catalog import PresetInfo, list_presets, open_preset, resolve
from lmzoo.presets.converting import convert, save_checkpoint
from lmzoo.presets.verifying import verify

__all__ = [
    "PresetError",
    "PresetInfo",
    "convert",
    "list_presets",
    "open_preset",
    "resolve",
    "save_checkpoint",
    "verify",
    "verify_manifest",
    "write_manifest",
]
