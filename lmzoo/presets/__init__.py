"""Presets: finding, fetching, checking and listing them."""

from lmzoo.errors import PresetError
from lmzoo.files.manifest import verify_manifest, write_manifest
from lmzoo.presets import text_parts  # noqa: F401 - registers how tokenizers and preprocessors are loaded
from lmzoo.presets.catalog import PresetInfo, list_presets, open_preset, resolve

__all__ = [
    "PresetError",
    "PresetInfo",
    "list_presets",
    "open_preset",
    "resolve",
    "verify_manifest",
    "write_manifest",
]
