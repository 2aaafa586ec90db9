"""What Hugging Face's files say of a tokenizer beside its vocabulary, held against what ours do, and the same written.

Ours have few settings. Whatever else would give other ids is an error that names it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.family_names import transformers_tokenizers
from lmzoo.checkpoints.formats.sharded import file_beside
from lmzoo.checkpoints.known_tokenizers import format_of
from lmzoo.checkpoints.tokenizer_format import PIPELINE_FILE, Json, TokenizerFormat, require
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE, read_json, write_json
from lmzoo.text import Tokenizer

SETTINGS_FILE = "tokenizer_config.json"
_NAMES_FILE, _ADDED_FILE = "special_tokens_map.json", "added_tokens.json"
_ANY_CLASS = ("PreTrainedTokenizer", "TokenizersBackend")  # they do what tokenizer.json says, and nothing else
_MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")


def read_settings(directory: Path, format: TokenizerFormat, pipeline: Json | None) -> dict[str, Any]:
    """Our constructor's arguments as far as the files give them.

    tokenizer_config.json counts more than tokenizer.json, as in transformers, with a notice if the two differ.

    Args:
        directory: the checkpoint's.
        format: the record of our class.
        pipeline: the content of tokenizer.json, if there is one.

    Raises:
        PresetError: naming the file and the setting that ours cannot follow.
    """
    file, config = directory / SETTINGS_FILE, _read(directory, SETTINGS_FILE)
    classes = transformers_tokenizers(format.tokenizer)
    stated = config.get("tokenizer_class") or _read(directory, CONFIG_FILE).get("tokenizer_class")
    name = str(stated or classes[0]).removesuffix("Fast")
    if name not in (*classes, *_ANY_CLASS):
        raise PresetError(f"{file}: the tokenizer is a {name}, but ours can only follow a {' or '.join(classes)}.")
    require(file, "", config, {**format.only, "split_special_tokens": (False,)})
    stored = {} if pipeline is None else format.settings_of_pipeline(pipeline, directory / PIPELINE_FILE)
    found = {}
    for key, (argument, default) in format.settings.items():
        if key in config and (not isinstance(config[key], bool) and config[key] is not default):
            raise PresetError(f"{file}: `{key}` must be true or false, got {config[key]!r:.60}.")
        if argument in stored and (name in _ANY_CLASS or key not in config):
            found[argument] = stored[argument]
        elif key in config:
            found[argument] = config[key]
        theirs = stored.get(argument) if name in _ANY_CLASS else config.get(key, default)
        if argument in stored and theirs != stored[argument]:
            warnings.warn(
                f"{directory / PIPELINE_FILE} says {argument}={stored[argument]!r}, but transformers takes {theirs!r}, "
                f"since {SETTINGS_FILE} {'says so' if key in config else f'lacks `{key}`'}. Here it is "
                f"{found[argument]!r}.",
                stacklevel=2,
            )
    return found


def longest_row(directory: Path, positions: int) -> int:
    """How many tokens a row may have: the tokenizer's `model_max_length`, or all positions of the model.

    Args:
        directory: the checkpoint's.
        positions: how many rows the model's table of positions has.

    Raises:
        PresetError: if `model_max_length` is no positive number.
    """
    length = _read(directory, SETTINGS_FILE).get("model_max_length")
    if length is None:
        return positions
    if isinstance(length, bool) or not isinstance(length, (int, float)) or not length >= 1:
        raise PresetError(
            f"{directory / SETTINGS_FILE}: `model_max_length` must be a positive number, got {length!r:.60}."
        )
    return int(min(length, positions))  # transformers writes 1e30 where there is no limit


def check_tokens(directory: Path, tokenizer: Tokenizer, pipeline: Json | None) -> None:
    """Holds the special and added tokens that the files name against the tokenizer's.

    Args:
        directory: the checkpoint's.
        tokenizer: ours, as it was built.
        pipeline: the content of tokenizer.json, if there is one.

    Raises:
        PresetError: naming the first token that ours does not have, or has in another place.
    """
    format, kind = format_of(type(tokenizer)), type(tokenizer).__name__
    expected = {attribute: getattr(tokenizer, ours) for attribute, ours in format.tokens.items()}
    ids = {token: id for id, token in enumerate(tokenizer.vocabulary)}
    symbols = format.symbols(tokenizer)
    apart: dict[str, None] = {}
    leaving: Path | None = None
    for file, attribute, id, token in _named_tokens(directory, pipeline):
        flags = token if isinstance(token, dict) else {"content": token}
        content = str(flags.get("content"))
        if content != (known := expected.get(attribute) or content):
            raise PresetError(f"{file}: the {attribute} is {content!r}, but a {kind} has {known!r}.")
        if id is not None and ids.get(content) != id:
            raise PresetError(f"{file} adds the token {content!r} with the id {id}, which is not in the vocabulary.")
        if content in symbols:
            apart[content] = None
        elif content not in tokenizer.special_tokens:
            raise PresetError(
                f"{file} adds the token {content!r}, but a {kind} would split it: all that it keeps whole is "
                f"{', '.join(tokenizer.special_tokens)}."
            )
        if flags.get("rstrip") or flags.get("single_word"):
            raise PresetError(f"{file}: the token {content!r} has `rstrip` or `single_word`, which ours cannot follow.")
        leaving = file if format.takes_space(tokenizer, content, flags, file) else leaving
    if leaving is not None:
        warnings.warn(
            f"{leaving}: {tokenizer.mask_token} lacks `lstrip`, so that transformers keeps a space before it. Here it "
            "takes the space with it, as in RoBERTa's pre-training.",
            stacklevel=2,
        )
    if apart:
        warnings.warn(
            f"{directory}: with these files, transformers splits texts at {' '.join(apart)} before SentencePiece sees "
            "them. Here SentencePiece sees all, as in ALBERT's pre-training.",
            stacklevel=2,
        )


def _named_tokens(directory: Path, pipeline: Json | None) -> Iterator[tuple[Path, str | None, int | None, Any]]:
    """Every mention of a token: the file, the attribute and the id as far as they are given, a string or an object."""
    for name in (SETTINGS_FILE, _NAMES_FILE):
        file, stored = directory / name, _read(directory, name)
        for key, value in stored.items():
            if key.endswith("_token") and isinstance(value, (str, dict)):
                yield file, key, None, value
        for key in _MORE_TOKENS:
            more = stored.get(key) or []
            yield from ((file, None, None, token) for token in (more.values() if isinstance(more, dict) else more))
        for id, token in (stored.get("added_tokens_decoder") or {}).items():
            yield file, None, int(id), token
    for token, id in _read(directory, _ADDED_FILE).items():
        yield directory / _ADDED_FILE, None, id, token
    for token in (pipeline or {}).get("added_tokens") or []:
        yield directory / PIPELINE_FILE, None, token.get("id"), token


def _read(directory: Path, name: str) -> dict[str, Any]:
    return read_json(directory, name) if file_beside(directory, name).is_file() else {}


def write_settings(tokenizer: Tokenizer, directory: Path, sequence_length: int, peer_class: str | None = None) -> None:
    """Writes tokenizer.json and tokenizer_config.json.

    Args:
        tokenizer: ours.
        directory: where to.
        sequence_length: the most tokens of a row.
        peer_class: name of the class in transformers, if not that of the first family with such a tokenizer.
    """
    format, config = format_of(type(tokenizer)), tokenizer.get_config()
    tokens = {attribute: getattr(tokenizer, ours) for attribute, ours in format.tokens.items()}
    settings = {
        "tokenizer_class": peer_class or transformers_tokenizers(type(tokenizer))[0],
        "model_max_length": sequence_length,
        **{attribute: token for attribute, token in tokens.items() if token is not None},
        **{key: config[argument] for key, (argument, _) in format.settings.items()},
        **{key: values[0] for key, values in format.only.items() if values[0] is not None},
        **format.also,
    }
    write_json(directory, SETTINGS_FILE, settings)
    format.pipeline(tokenizer).save(str(directory / PIPELINE_FILE))
