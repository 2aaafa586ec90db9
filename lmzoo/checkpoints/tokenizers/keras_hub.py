"""Tokenizers of KerasHub: `tokenizer.json` in its own format, and the vocabulary in `assets/tokenizer/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import JsonObject, KeyReader
from lmzoo.checkpoints.family_names import keras_hub_tokenizers
from lmzoo.checkpoints.tokenizers.formats import get_format
from lmzoo.checkpoints.tokenizers.vocabulary_files import add_file_to_errors
from lmzoo.errors import PresetError
from lmzoo.files.inside import check_inside
from lmzoo.files.preset_files import TOKENIZER_ASSETS_DIR, TOKENIZER_FILE, write_json
from lmzoo.text import SpecialTokens, Tokenizer
from lmzoo.text.tokenizers.added_tokens import special_token


def read_keras_hub_tokenizer(directory: Path, stored: JsonObject, special: SpecialTokens) -> tuple[Tokenizer, Path]:
    """Read the tokenizer of a KerasHub checkpoint, and return it with the directory of its vocabulary.

    Args:
        directory: Directory of the checkpoint.
        stored: Content of `tokenizer.json`.
        special: Special tokens of the family that differ from the defaults of its tokenizer class.

    Raises:
        PresetError: If the class or a setting is not supported, or the vocabulary is missing or damaged.
    """
    file = directory / TOKENIZER_FILE
    assets_directory = directory / TOKENIZER_ASSETS_DIR
    class_name = stored["class_name"]
    config = stored.get("config")
    families = keras_hub_tokenizers()
    if class_name not in families or not isinstance(config, dict):
        raise PresetError(f"{file} holds a {class_name!r:.60} of KerasHub; supported are {', '.join(families)}.")
    cls: Any = families[class_name].tokenizer
    reader = KeyReader()
    settings = reader.read(get_format(cls).keras_hub, config, file)
    reader.warn()
    stored_roles = {role: token for role in cls.roles if (token := settings.pop(role, None)) is not None}
    roles = {**special, **stored_roles}
    with add_file_to_errors(file):
        tokenizer = cls(**settings, **roles)
        unsplittable_tokens = (*(config.get("special_tokens") or ()), *(config.get("unsplittable_tokens") or ()))
        added_tokens = [token for token in unsplittable_tokens if token not in tokenizer.special_tokens]
        if added_tokens and not cls.takes_added_tokens:
            raise PresetError(
                f"{file}: KerasHub never splits {added_tokens[0]!r}, but a {cls.__name__} would split it."
            )
        if added_tokens:
            tokenizer = cls(**settings, **roles, added_tokens=[*map(special_token, added_tokens)])
    if not assets_directory.is_dir():
        raise PresetError(f"{directory} has no {TOKENIZER_ASSETS_DIR}, where the vocabulary should be.")
    for path in assets_directory.iterdir():
        check_inside(directory, path)
    with add_file_to_errors(assets_directory):
        tokenizer.load_assets(assets_directory)
    return tokenizer, assets_directory


def write_keras_hub_tokenizer(tokenizer: Tokenizer, directory: Path, name: str) -> None:
    """Write the settings and the vocabulary of a tokenizer into a KerasHub checkpoint.

    For some texts, KerasHub returns different ids, whatever the settings: it folds case ("ß" becomes "ss", and "…"
    becomes three dots), measures the length of words in bytes, does not include the preceding space in `<mask>`, splits
    special tokens in ALBERT's texts, and keeps tokens such as "9," whole.

    Args:
        tokenizer: Tokenizer to write.
        directory: Directory of the checkpoint.
        name: Tokenizer class in KerasHub, such as "BertTokenizer".

    Raises:
        PresetError: If the KerasHub class does not match the tokenizer or cannot read its vocabulary.
    """
    cls = type(tokenizer)
    family = keras_hub_tokenizers().get(name)
    if family is None or family.tokenizer is not cls:
        raise PresetError(f"KerasHub's {name} cannot do what a {cls.__name__} does: save the model without it.")
    config, tokenizer = get_format(cls).to_keras_hub(tokenizer, name)
    serialized_tokenizer = {"class_name": name, "config": config, "registered_name": f"keras_hub>{name}"}
    write_json(directory, TOKENIZER_FILE, serialized_tokenizer)
    assets_directory = directory / TOKENIZER_ASSETS_DIR
    assets_directory.mkdir(parents=True)
    tokenizer.save_assets(assets_directory)
