"""Reads and writes what Hugging Face's files say about a tokenizer in addition to its vocabulary.

Our tokenizers have few settings. Whatever else would give other ids is an error that names it. `pipeline` is the
content of tokenizer.json, None if there is no such file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import Arguments, JsonObject
from lmzoo.checkpoints.known_tokenizers import format_of
from lmzoo.checkpoints.tokenizer_classes import ANY_CLASS, SETTINGS_FILE, class_of_tokenizer, stated_class
from lmzoo.checkpoints.tokenizer_format import PIPELINE_FILE, TokenizerFormat, require
from lmzoo.checkpoints.tokenizer_packing import template_of
from lmzoo.checkpoints.vocabulary_files import has_file
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import read_json, write_json
from lmzoo.text import Packing, Tokenizer

_NAMES_FILE, _ADDED_FILE = "special_tokens_map.json", "added_tokens.json"
_MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")


def read_settings(directory: Path, format: TokenizerFormat, pipeline: JsonObject | None) -> Arguments:
    """Reads our constructor's arguments, as far as the files give them.

    tokenizer_config.json takes precedence over tokenizer.json, as in transformers, with a warning if the two differ.

    Raises:
        PresetError: naming the file and the setting that ours does not support.
    """
    file, config = directory / SETTINGS_FILE, _read(directory, SETTINGS_FILE)
    _, name = stated_class(directory)
    require(file, "", config, {**format.allowed, "split_special_tokens": (False,)})
    stored = {} if pipeline is None else format.settings_of_pipeline(pipeline, directory / PIPELINE_FILE)
    found = {argument: value for argument, value in stored.items() if argument in Tokenizer.roles and value}
    for key, (argument, default) in format.settings.items():
        if key in config and (not isinstance(config[key], bool) and config[key] is not default):
            raise PresetError(f"{file}: `{key}` must be true or false, got {config[key]!r:.60}.")
        if argument in stored and (name in ANY_CLASS or key not in config):
            found[argument] = stored[argument]
        elif key in config:
            found[argument] = config[key]
        theirs = stored.get(argument) if name in ANY_CLASS else config.get(key, default)
        if argument in stored and theirs != stored[argument]:
            warnings.warn(
                f"{directory / PIPELINE_FILE} says {argument}={stored[argument]!r}, but transformers takes {theirs!r}, "
                f"since {SETTINGS_FILE} {'says so' if key in config else f'lacks `{key}`'}. lmzoo takes "
                f"{found[argument]!r}.",
                stacklevel=2,
            )
    return found


def longest_sequence(directory: Path, positions: int) -> int:
    """Return how many tokens a sequence may have: the tokenizer's limit, and at most `positions`, the model's.

    The limit is `model_max_length` or, in files of 2019 and 2020, `max_len`.

    Raises:
        PresetError: if the limit is not a positive number.
    """
    settings = _read(directory, SETTINGS_FILE)
    key = "model_max_length" if "model_max_length" in settings else "max_len"
    length = settings.get(key)
    if length is None:
        return positions
    if isinstance(length, bool) or not isinstance(length, (int, float)) or not length >= 1:
        raise PresetError(f"{directory / SETTINGS_FILE}: `{key}` must be a positive number, got {length!r:.60}.")
    return int(min(length, positions))  # transformers writes 1e30 where there is no limit


def check_tokens(directory: Path, tokenizer: Tokenizer, pipeline: JsonObject | None) -> None:
    """Compares the special and added tokens that the files name with the tokenizer's.

    Raises:
        PresetError: naming the first token that ours does not have, or has with another id or in another role.
    """
    format, kind = format_of(type(tokenizer)), type(tokenizer).__name__
    expected = {attribute: getattr(tokenizer, ours) for attribute, ours in format.tokens.items()}
    ids = {token: id for id, token in enumerate(tokenizer.vocabulary)}
    symbols = format.symbols(tokenizer)
    split_at: dict[str, None] = {}  # in the order of the files
    keeps_space: Path | None = None
    for file, attribute, id, token in _named_tokens(directory, pipeline):
        flags = token if isinstance(token, dict) else {"content": token}
        content = str(flags.get("content"))
        if tokenizer.mask_token is None and content == type(tokenizer).mask_token and content not in ids:
            continue  # transformers adds it, and the model has no embedding for it
        if content != (known := expected.get(attribute) or content):
            raise PresetError(f"{file}: the {attribute} is {content!r}, but a {kind} has {known!r}.")
        if id is not None and ids.get(content) != id:
            raise PresetError(f"{file} adds the token {content!r} with the id {id}, which is not in the vocabulary.")
        if content in symbols:
            split_at[content] = None
        elif content not in tokenizer.special_tokens:
            raise PresetError(
                f"{file} adds the token {content!r}, but a {kind} would split it: it keeps only "
                f"{', '.join(tokenizer.special_tokens)} whole."
            )
        if flags.get("rstrip") or flags.get("single_word"):
            raise PresetError(f"{file}: the token {content!r} has `rstrip` or `single_word`: lmzoo supports neither.")
        keeps_space = file if format.takes_space(tokenizer, content, flags, file) else keeps_space
    if keeps_space is not None:
        warnings.warn(
            f"{keeps_space}: {tokenizer.mask_token} lacks `lstrip`, so transformers keeps a space before it. In lmzoo "
            "the token includes the space, as in RoBERTa's pre-training.",
            stacklevel=2,
        )
    if split_at:
        warnings.warn(
            f"{directory}: with these files, transformers splits texts at {' '.join(split_at)} before SentencePiece "
            "sees them. In lmzoo, SentencePiece sees whole texts, as in ALBERT's pre-training.",
            stacklevel=2,
        )


def _named_tokens(directory: Path, pipeline: JsonObject | None) -> Iterator[tuple[Path, str, int | None, Any]]:
    """Every mention of a token: its file, its attribute ("" for none), its id if given, and a string or an object."""
    for name in (SETTINGS_FILE, _NAMES_FILE):
        file, stored = directory / name, _read(directory, name)
        for key, value in stored.items():
            if key.endswith("_token") and isinstance(value, (str, dict)):
                yield file, key, None, value
        for key in _MORE_TOKENS:
            more = stored.get(key) or []
            yield from ((file, "", None, token) for token in (more.values() if isinstance(more, dict) else more))
        for id, token in (stored.get("added_tokens_decoder") or {}).items():
            yield file, "", int(id), token
    for token, id in _read(directory, _ADDED_FILE).items():
        yield directory / _ADDED_FILE, "", id, token
    for token in (pipeline or {}).get("added_tokens") or []:
        yield directory / PIPELINE_FILE, "", token.get("id"), token


def _read(directory: Path, name: str) -> JsonObject:
    return read_json(directory, name) if has_file(directory, name) else {}


def write_settings(
    tokenizer: Tokenizer,
    directory: Path,
    sequence_length: int,
    peer_class: str | None = None,
    packing: Packing | None = None,
) -> None:
    """Writes tokenizer.json and tokenizer_config.json.

    Args:
        tokenizer: the tokenizer.
        directory: where to write.
        sequence_length: the most tokens of a sequence.
        peer_class: the class in transformers, by default that of the first family with such a tokenizer.
        packing: how texts are packed, if not as that class does. The class is then one that does what tokenizer.json
            says.
    """
    format, config = format_of(type(tokenizer)), tokenizer.get_config()
    tokens = {attribute: getattr(tokenizer, ours) for attribute, ours in format.tokens.items()}
    settings = {
        "tokenizer_class": peer_class or class_of_tokenizer(tokenizer).name,
        "model_max_length": sequence_length,
        **{attribute: token for attribute, token in tokens.items() if token is not None},
        **{key: config[argument] for key, (argument, _) in format.settings.items()},
        **{key: values[0] for key, values in format.allowed.items() if values[0] is not None},
        **format.extra_settings,
    }
    pipeline = format.pipeline(tokenizer)
    if packing is not None and pipeline is not None:
        settings["tokenizer_class"] = f"{ANY_CLASS[0]}Fast"
        pipeline.post_processor = template_of(packing, tokenizer)
    write_json(directory, SETTINGS_FILE, settings)
    if pipeline is not None:
        pipeline.save(str(directory / PIPELINE_FILE))
