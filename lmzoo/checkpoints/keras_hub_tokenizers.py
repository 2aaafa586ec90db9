"""Tokenizers of KerasHub's presets: `tokenizer.json` in its sense, and the vocabulary in `assets/tokenizer/`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import ConfigTable
from lmzoo.checkpoints.formats.sharded import check_inside
from lmzoo.checkpoints.sentencepiece_rules import with_clean_up
from lmzoo.checkpoints.vocabularies import naming
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import TOKENIZER_ASSETS_DIR, TOKENIZER_FILE, write_json
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
        ignored=_IGNORED,
        # It knows the special tokens but for this one, and keeps them whole only if told to.
        written={
            "vocabulary": None,
            "special_tokens": [WordPieceTokenizer.unk_token],
            "special_tokens_in_strings": True,
        },
    ),
    BytePairTokenizer: ConfigTable(
        keys={},
        only={"add_prefix_space": (False,)},
        ignored=_IGNORED,
        written={
            "vocabulary": None,
            "merges": None,
            "unsplittable_tokens": list(BytePairTokenizer.special_tokens),
        },
    ),
    SentencePieceTokenizer: ConfigTable(
        keys={}, only={"add_bos": (False,), "add_eos": (False,)}, ignored=_IGNORED, written={"proto": None}
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
    for path in assets.iterdir():
        check_inside(directory, path)
    with naming(assets):
        tokenizer.load_assets(assets)
    return tokenizer, assets


def write_keras_hub_tokenizer(tokenizer: Tokenizer, directory: Path, name: str) -> None:
    """Writes a tokenizer's files into a preset of KerasHub's.

    KerasHub's tokenizers get the settings and the vocabulary. What their code does otherwise is no setting, and ids
    differ there: they fold cases ("ß" becomes "ss", "…" three dots), measure a word's length in bytes, do not take the
    space before `<mask>` with it, split the special tokens in ALBERT's texts, and keep its pieces such as "9,".

    Args:
        tokenizer: one of `lmzoo.text`.
        directory: the preset's.
        name: KerasHub's class, such as "BertTokenizer".

    Raises:
        PresetError: if the class is for other tokenizers, or cannot read the vocabulary.
    """
    cls = type(tokenizer)
    if _CLASSES.get(name) is not cls:
        raise PresetError(f"KerasHub's {name} cannot do what a {cls.__name__} does: save the model without tokenizer.")
    settings = tokenizer.get_config()
    if isinstance(tokenizer, WordPieceTokenizer):
        if settings["strip_accents"] is None:
            settings["strip_accents"] = settings["lowercase"]
        if strange := next((token for token in tokenizer.vocabulary if token != token.rstrip()), None):
            raise PresetError(f"KerasHub's {name} cannot read the token {strange!r}: it strips white space at the end.")
    elif isinstance(tokenizer, SentencePieceTokenizer):
        tokenizer = with_clean_up(tokenizer)
    config = _CONFIGS[cls].write(settings, "KerasHub")
    stored = {"class_name": name, "config": config, "registered_name": f"keras_hub>{name}"}
    write_json(directory, TOKENIZER_FILE, stored)
    assets = directory / TOKENIZER_ASSETS_DIR
    assets.mkdir(parents=True)
    tokenizer.save_assets(assets)
