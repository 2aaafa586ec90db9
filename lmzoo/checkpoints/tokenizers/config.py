"""Settings and tokens of a tokenizer in Hugging Face's files.

Our tokenizers have few settings. Whatever else would give other ids is an error that names it. `pipeline` is the
content of tokenizer.json, None if there is no such file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import Arguments, JsonObject, require_value
from lmzoo.checkpoints.tokenizers.classes import ANY_CLASS, SETTINGS_FILE, stated_class
from lmzoo.checkpoints.tokenizers.format import PIPELINE_FILE, TokenizerFormat, require
from lmzoo.checkpoints.tokenizers.formats import format_of
from lmzoo.common.arguments import is_number
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import JsonFiles
from lmzoo.text import AddedToken, Tokenizer

_NAMES_FILE = "special_tokens_map.json"
_ADDED_FILE = "added_tokens.json"
_MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")


def read_settings(files: JsonFiles, format: TokenizerFormat[Any], pipeline: JsonObject | None) -> Arguments:
    """Read our constructor's arguments, as far as the files give them.

    tokenizer_config.json takes precedence over tokenizer.json, as in transformers, with a warning if the two differ.

    Raises:
        PresetError: Naming the file and the setting that ours does not support.
    """
    directory = files.directory
    file = directory / SETTINGS_FILE
    config = files.read_if_present(SETTINGS_FILE)
    _, name = stated_class(files)
    require(file, "", config, {**format.allowed, "split_special_tokens": (False,)})
    for key, values in format.without_effect.items():
        if config.get(key) not in values:
            warnings.warn(f"{file}: ignoring `{key}` ({config[key]!r:.60}), as transformers 5 does.", stacklevel=2)
    stored = {} if pipeline is None else format.settings_of_pipeline(pipeline, directory / PIPELINE_FILE)
    found = {argument: value for argument, value in stored.items() if argument in Tokenizer.roles and value}
    for key, (argument, default) in format.settings.items():
        given = config.get(key, default)
        require_value(isinstance(given, bool) or given is default, file, key, "true or false", given)
        if argument in stored and (name in ANY_CLASS or key not in config):
            found[argument] = stored[argument]
        elif key in config:
            found[argument] = config[key]
        theirs = stored.get(argument) if name in ANY_CLASS else given
        if argument in stored and theirs != stored[argument]:
            warnings.warn(
                f"{directory / PIPELINE_FILE} says {argument}={stored[argument]!r}, but transformers takes {theirs!r}, "
                f"since {SETTINGS_FILE} {'says so' if key in config else f'lacks `{key}`'}. lmzoo takes "
                f"{found[argument]!r}.",
                stacklevel=2,
            )
    return found


def longest_sequence(files: JsonFiles, positions: int) -> int:
    """Return how many tokens a sequence may have: the tokenizer's limit, and at most `positions`, the model's.

    The limit is `model_max_length` or, in files of 2019 and 2020, `max_len`.

    Raises:
        PresetError: If the limit is not a positive number.
    """
    settings = files.read_if_present(SETTINGS_FILE)
    key = "model_max_length" if "model_max_length" in settings else "max_len"
    length = settings.get(key)
    if length is None:
        return positions
    require_value(is_number(length, 1), files.directory / SETTINGS_FILE, key, "a positive number", length)
    return int(min(length, positions))  # transformers writes 1e30 where there is no limit


def read_tokens(files: JsonFiles, tokenizer: Tokenizer, pipeline: JsonObject | None) -> Arguments:
    """Read the constructor's arguments for the special and added tokens that the files name.

    They are missing for tokens that the tokenizer, which was made without them, finds as the files say.

    Raises:
        PresetError: Naming the first token that ours cannot have, or has with another id or in another role.
    """
    format = format_of(type(tokenizer))
    kind = type(tokenizer).__name__
    expected = {attribute: getattr(tokenizer, ours) for attribute, ours in format.tokens.items()}
    ids = {token: id for id, token in enumerate(tokenizer.vocabulary)}
    default = {token.content: token for token in tokenizer.text_tokens}
    symbols = format.symbols(tokenizer)
    split_at: dict[str, None] = {}  # in the order of the files
    added: dict[str, AddedToken] = {}
    new_ids: dict[str, tuple[int, Path]] = {}
    roles: Arguments = {}
    for file, attribute, id, token in _named_tokens(files, pipeline):
        flags = token if isinstance(token, dict) else {"content": token}
        content = str(flags.get("content"))
        if tokenizer.mask_token is None and content == type(tokenizer).mask_token and content not in ids:
            continue  # transformers adds it, and the model has no embedding for it
        if content != (known := expected.get(attribute) or content):
            raise PresetError(f"{file}: the {attribute} is {content!r}, but a {kind} has {known!r}.")
        if id is not None and content in ids and ids[content] != id:
            raise PresetError(f"{file} adds the token {content!r} with the id {id}, but it has the id {ids[content]}.")
        if content in symbols:
            split_at[content] = None
        elif content in tokenizer.special_tokens:
            if content in default and (changed := format.with_flags(default[content], flags)) != default[content]:
                added[content] = changed
        elif not tokenizer.takes_added_tokens:
            raise PresetError(
                f"{file} adds the token {content!r}, but a {kind} would split it: it keeps only "
                f"{', '.join(tokenizer.special_tokens)} whole."
            )
        else:
            special = bool(attribute) or (content in added and added[content].special)
            added[content] = _added_token(flags, special, added.get(content))
            if id is not None:
                new_ids.setdefault(content, (id, file))
            if (role := format.tokens.get(attribute)) is not None:
                roles[role] = content
    if split_at:
        warnings.warn(
            f"{files.directory}: with these files, transformers splits texts at {' '.join(split_at)} before "
            "SentencePiece sees them. In lmzoo, SentencePiece sees whole texts, as in ALBERT's pre-training.",
            stacklevel=2,
        )
    if not added:
        return {}
    return {**roles, "added_tokens": _in_order_of_ids(added, new_ids, ids, tokenizer.vocabulary_size)}


def file_that_adds(token: str, files: JsonFiles) -> Path:
    """Return the first file that names a token that was added."""
    mentions = _named_tokens(files, files.read_if_present(PIPELINE_FILE))
    names = ((file, named.get("content") if isinstance(named, dict) else named) for file, _, _, named in mentions)
    return next(file for file, name in names if name == token)


def _added_token(flags: JsonObject, special: bool, earlier: AddedToken | None) -> AddedToken:
    """Return a token that a file names, with the flags of an earlier mention if this one has none."""
    stated = {field.name: flags[field.name] for field in fields(AddedToken) if field.name in flags}
    if earlier is not None and len(stated) == 1:
        return replace(earlier, special=special or earlier.special)
    special = special or bool(stated.get("special"))
    return AddedToken(**{"normalized": not special, **stated, "special": special})


def _in_order_of_ids(
    added: Mapping[str, AddedToken], new_ids: Mapping[str, tuple[int, Path]], ids: Mapping[str, int], size: int
) -> list[AddedToken]:
    """Sort the tokens so that those missing from the vocabulary, of `size`, get the ids that the files state.

    Raises:
        PresetError: If ids are left out.
    """
    in_vocabulary = [content for content in added if content in ids]
    with_id = sorted(new_ids.keys() - ids.keys(), key=new_ids.__getitem__)
    without_id = [content for content in added if content not in {*in_vocabulary, *with_id}]
    for expected, content in enumerate(with_id, size):
        id, file = new_ids[content]
        if id != expected:
            raise PresetError(f"{file} adds the token {content!r} with the id {id}, but {expected} is the next one.")
    return [added[content] for content in (*in_vocabulary, *with_id, *without_id)]


def _named_tokens(files: JsonFiles, pipeline: JsonObject | None) -> Iterator[tuple[Path, str, int | None, Any]]:
    """Yield every mention of a token: its file, its attribute ("" for none), its id if given, a string or an object.

    Of several mentions the last one counts, as in transformers.
    """
    directory = files.directory
    for token in (pipeline or {}).get("added_tokens") or []:
        yield directory / PIPELINE_FILE, "", token.get("id"), token
    for token, id in files.read_if_present(_ADDED_FILE).items():
        yield directory / _ADDED_FILE, "", id, token
    for name in (_NAMES_FILE, SETTINGS_FILE):
        file = directory / name
        stored = files.read_if_present(name)
        for key, value in stored.items():
            if key.endswith("_token") and isinstance(value, (str, dict)):
                yield file, key, None, value
        for key in _MORE_TOKENS:
            more = stored.get(key) or []
            yield from ((file, key, None, token) for token in (more.values() if isinstance(more, dict) else more))
        for id, token in (stored.get("added_tokens_decoder") or {}).items():
            yield file, "", int(id), token
