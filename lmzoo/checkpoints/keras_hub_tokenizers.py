"""Tokenizers of KerasHub's presets: `tokenizer.json` in its sense, and the vocabulary in `assets/tokenizer/`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config import ConfigTable
from lmzoo.checkpoints.vocabularies import naming
from lmzoo.presets.store import TOKENIZER_ASSETS_DIR, TOKENIZER_FILE, PresetError
from lmzoo.text import BytePairTokenizer, SentencePieceTokenizer, Tokenizer, WordPieceTokenizer

_CLASSES: dict[str, type[Tokenizer]] = {
    "BertTokenizer": WordPieceTokenizer,
    "DistilBertTokenizer": WordPieceTokenizer,
    "RobertaTokenizer": BytePairTokenizer,
    "AlbertTokenizer": SentencePieceTokenizer,
}
_IGNORED = ("name", "trainable", "dtype", "config_file", "sequence_length", "special_tokens_in_strings")
_CONFIGS: dict[type[Tokenizer], ConfigTable] = {
    WordPieceTokenizer: ConfigTable(
        keys={"lowercase": "lowercase", "strip_accents": "strip_accents"},
        defaults={"lowercase": False, "strip_accents": False},
        only={"split": (True,), "split_on_cjk": (True,), "suffix_indicator": ("##",), "oov_token": ("[UNK]",)},
        ignored=(*_IGNORED, "vocabulary", "special_tokens"),
    ),
    BytePairTokenizer: ConfigTable(
        keys={},
        only={"add_prefix_space": (False,)},
        ignored=(*_IGNORED, "vocabulary", "merges", "unsplittable_tokens"),
    ),
    SentencePieceTokenizer: ConfigTable(
        keys={}, only={"add_bos": (False,), "add_eos": (False,)}, ignored=(*_IGNORED, "proto")
    ),
}


def read_keras_hub_tokenizer(directory: Path, stored: Mapping[str, Any]) -> tuple[Tokenizer, Path]:
    """A tokenizer, and where its vocabulary is.

    Args:
        directory: the preset's.
        stored: the content of tokenizer.json.

    Raises:
        PresetError: for another class, settings that ours cannot follow, or a missing or damaged vocabulary.
    """
    file, assets = directory / TOKENIZER_FILE, directory / TOKENIZER_ASSETS_DIR
    name, config = stored["class_name"], stored.get("config")
    if name not in _CLASSES or not isinstance(config, dict):
        raise PresetError(f"{file} holds a {name!r:.60} of KerasHub; known are {', '.join(_CLASSES)}.")
    cls = _CLASSES[name]
    for token in (*(config.get("special_tokens") or ()), *(config.get("unsplittable_tokens") or ())):
        if token not in cls.special_tokens:
            raise PresetError(f"{file}: {token!r} is never split there, but a {cls.__name__} would split it.")
    tokenizer = cls(**_CONFIGS[cls].read(config, file))
    if not assets.is_dir():
        raise PresetError(f"{directory} has no {TOKENIZER_ASSETS_DIR}, where the vocabulary should be.")
    _check_links(directory, assets)
    with naming(assets):
        tokenizer.load_assets(assets)
    return tokenizer, assets


def _check_links(directory: Path, assets: Path) -> None:
    """As `lmzoo.checkpoints.files.file_beside`, for files that are not at the top of the preset."""
    root = Path(os.path.realpath(directory))
    homes = [root, *([root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [])]
    for path in assets.iterdir():
        if not any(Path(os.path.realpath(path)).is_relative_to(home) for home in homes):
            raise PresetError(f"{path} is a link to {os.path.realpath(path)}, outside the preset, and is not followed.")
