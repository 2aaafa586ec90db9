"""Presets of lmzoo: listing, downloading and verification."""

from lmzoo.errors import PresetError
from lmzoo.files.manifest import verify_manifest, write_manifest
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
