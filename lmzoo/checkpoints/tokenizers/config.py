"""Reading of tokenizer settings, special tokens and added tokens from transformers' files.

lmzoo's tokenizers have few settings: any other setting that would result in different ids is an error. The argument
`pipeline` of the functions is the content of tokenizer.json, or None if the file is missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import Arguments, JsonObject, require_value
from lmzoo.checkpoints.tokenizers.classes import ANY_CLASS, SETTINGS_FILE, read_class_name
from lmzoo.checkpoints.tokenizers.format import PIPELINE_FILE, TokenizerFormat, require
from lmzoo.checkpoints.tokenizers.formats import get_format
from lmzoo.common.arguments import is_integer, is_number
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import JsonFiles
from lmzoo.text import AddedToken, SpecialTokens, Tokenizer

_NAMES_FILE = "special_tokens_map.json"
_ADDED_FILE = "added_tokens.json"
_ENDS_OF_TEXTS = ("bos_token", "eos_token")
_MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")


def read_settings(files: JsonFiles, format: TokenizerFormat[Any], pipeline: JsonObject | None) -> Arguments:
    """Return the tokenizer constructor arguments for the settings in the files.

    As in transformers, tokenizer_config.json takes precedence over tokenizer.json, except if it names a generic class
    (`ANY_CLASS`) or lacks the setting. A difference causes a warning.

    Args:
        files: JSON files of the checkpoint.
        format: Format of the tokenizer.
        pipeline: Content of tokenizer.json, or None if the file is missing.

    Raises:
        PresetError: If a setting is not supported; the message names the setting and its file.
    """
    directory = files.directory
    file = directory / SETTINGS_FILE
    settings = files.read_if_present(SETTINGS_FILE)
    _, class_name = read_class_name(files)
    require(file, "", settings, {**format.allowed, "split_special_tokens": (False,)})
    for key, values in format.without_effect.items():
        if settings.get(key) not in values:
            warnings.warn(f"{file}: ignoring `{key}` ({settings[key]!r:.60}).", stacklevel=2)
    truncation = (pipeline or {}).get("truncation") or {}
    if str(settings.get("truncation_side", truncation.get("direction"))).lower() == "left":
        warnings.warn(
            f"{directory}: `truncation_side` is 'left', but lmzoo truncates texts that are too long at the end.",
            stacklevel=2,
        )
    pipeline_settings = {} if pipeline is None else format.read_pipeline_settings(pipeline, directory / PIPELINE_FILE)
    arguments = {
        argument: value for argument, value in pipeline_settings.items() if argument in Tokenizer.roles and value
    }
    for key, (argument, default) in format.settings.items():
        setting = settings.get(key, default)
        if is_integer(default):
            require_value(is_integer(setting, 0), file, key, "an integer of at least 0", setting)
        else:
            require_value(isinstance(setting, bool) or setting is default, file, key, "true or false", setting)
        if argument in pipeline_settings and (class_name in ANY_CLASS or key not in settings):
            arguments[argument] = pipeline_settings[argument]
        elif key in settings:
            arguments[argument] = settings[key]
        expected = pipeline_settings.get(argument) if class_name in ANY_CLASS else setting
        if argument in pipeline_settings and expected != pipeline_settings[argument]:
            warnings.warn(
                f"{directory / PIPELINE_FILE} says {argument}={pipeline_settings[argument]!r}, but transformers takes "
                f"{expected!r}, since {SETTINGS_FILE} {'says so' if key in settings else f'lacks `{key}`'}. lmzoo "
                f"takes {arguments[argument]!r}.",
                stacklevel=2,
            )
    return arguments


def read_roles(files: JsonFiles, format: TokenizerFormat[Any]) -> SpecialTokens:
    """Return the stored special tokens by role for a generic class (`ANY_CLASS`), and {} for any other class."""
    _, class_name = read_class_name(files)
    roles: Any = {}
    for _, attribute, _, token in _list_mentions(files, None):
        if class_name in ANY_CLASS and attribute in format.tokens:
            roles[format.tokens[attribute]] = token["content"] if isinstance(token, dict) else token
    return roles


def read_sequence_length(files: JsonFiles, positions: int) -> int:
    """Return the maximum number of tokens in a sequence, the smaller of the tokenizer's and the model's limits.

    The tokenizer's limit is `model_max_length` or, in files from 2019 and 2020, `max_len`.

    Args:
        files: JSON files of the checkpoint.
        positions: Maximum number of tokens that the model supports.

    Raises:
        PresetError: If the tokenizer's limit is not a positive number.
    """
    settings = files.read_if_present(SETTINGS_FILE)
    key = "model_max_length" if "model_max_length" in settings else "max_len"
    limit = settings.get(key)
    if limit is None:
        return positions
    require_value(is_number(limit, 1), files.directory / SETTINGS_FILE, key, "a positive number", limit)
    return int(min(limit, positions))  # 1e30 stands for no limit


def read_tokens(
    files: JsonFiles, tokenizer: Tokenizer, pipeline: JsonObject | None, is_decoder: bool = False
) -> Arguments:
    """Return the constructor arguments for the special and added tokens in the files.

    Args:
        files: JSON files of the checkpoint.
        tokenizer: Tokenizer without these arguments. Tokens that it already treats as the files say are omitted.
        pipeline: Content of tokenizer.json, or None if the file is missing.
        is_decoder: Whether the tokenizer is a decoder's, which may have other start and end tokens than its class.

    Raises:
        PresetError: If a token is not supported or has a different id or role; the message names the first such token.
    """
    format = get_format(type(tokenizer))
    class_name = type(tokenizer).__name__
    adopted_attributes = {*_ENDS_OF_TEXTS} & format.tokens.keys() if is_decoder else set()
    fixed_attributes = format.tokens.keys() - adopted_attributes
    expected = {attribute: getattr(tokenizer, format.tokens[attribute]) for attribute in fixed_attributes}
    ids_by_token = {token: id for id, token in enumerate(tokenizer.vocabulary)}
    default_tokens = {token.content: token for token in tokenizer.text_tokens}
    symbols = format.symbols(tokenizer)
    mentioned_symbols: dict[str, AddedToken] = {}  # in the order of the files
    added_tokens: dict[str, AddedToken] = {}
    new_ids: dict[str, tuple[int, Path]] = {}
    roles: Arguments = {}
    for file, attribute, id, token in _list_mentions(files, pipeline):
        flags = token if isinstance(token, dict) else {"content": token}
        content = str(flags.get("content"))
        if tokenizer.mask_token is None and content == type(tokenizer).mask_token and content not in ids_by_token:
            continue  # transformers adds it, and the model has no embedding for it
        if attribute in adopted_attributes:
            role = format.tokens[attribute]
            roles[role] = content
            expected |= {name: content for name in fixed_attributes if format.tokens[name] == role}
        if content != (expected_content := expected.get(attribute) or content):
            raise PresetError(f"{file}: the {attribute} is {content!r}, but a {class_name} has {expected_content!r}.")
        if id is not None and content in ids_by_token and ids_by_token[content] != id:
            raise PresetError(
                f"{file} adds the token {content!r} with the id {id}, but it has the id {ids_by_token[content]}."
            )
        if content in symbols:
            mentioned_symbols[content] = _make_added_token(flags, bool(attribute), mentioned_symbols.get(content))
        elif content in tokenizer.special_tokens:
            if (
                content in default_tokens
                and (changed_token := format.with_flags(default_tokens[content], flags)) != default_tokens[content]
            ):
                added_tokens[content] = changed_token
        elif not tokenizer.takes_added_tokens:
            raise PresetError(
                f"{file} adds the token {content!r}, but a {class_name} would split it: it keeps only "
                f"{', '.join(tokenizer.special_tokens)} whole."
            )
        else:
            is_special = bool(attribute) or (content in added_tokens and added_tokens[content].special)
            added_tokens[content] = _make_added_token(flags, is_special, added_tokens.get(content))
            if id is not None:
                new_ids.setdefault(content, (id, file))
            if attribute in format.tokens:
                roles[format.tokens[attribute]] = content
    if mentioned_symbols.keys() != symbols:  # transformers adds all symbols or none, so people added these
        added_tokens |= mentioned_symbols
    elif mentioned_symbols:
        warnings.warn(
            f"{files.directory}: with these files, transformers splits texts at {' '.join(mentioned_symbols)} before "
            "SentencePiece sees them. In lmzoo, SentencePiece sees whole texts, as in ALBERT's pre-training.",
            stacklevel=2,
        )
    arguments = {role: token for role, token in roles.items() if token != getattr(tokenizer, role)}
    if added_tokens:
        vocabulary_size = tokenizer.vocabulary_size
        arguments["added_tokens"] = _sort_by_id(added_tokens, new_ids, ids_by_token, vocabulary_size)
    return arguments


def find_file_that_adds(token: str, files: JsonFiles) -> Path:
    """Return the path of the first file that adds a token."""
    mentions = _list_mentions(files, files.read_if_present(PIPELINE_FILE))
    added_tokens = (
        (file, mention.get("content") if isinstance(mention, dict) else mention) for file, _, _, mention in mentions
    )
    return next(file for file, content in added_tokens if content == token)


def _make_added_token(flags: JsonObject, is_special: bool, earlier_mention: AddedToken | None) -> AddedToken:
    """Return an added token with the stored flags or, if `flags` holds none, the flags of an earlier mention."""
    stored_flags = {field.name: flags[field.name] for field in fields(AddedToken) if field.name in flags}
    if earlier_mention is not None and len(stored_flags) == 1:
        return replace(earlier_mention, special=is_special or earlier_mention.special)
    is_special = is_special or bool(stored_flags.get("special"))
    return AddedToken(**{"normalized": not is_special, **stored_flags, "special": is_special})


def _sort_by_id(
    added_tokens: Mapping[str, AddedToken],
    new_ids: Mapping[str, tuple[int, Path]],
    ids_by_token: Mapping[str, int],
    vocabulary_size: int,
) -> list[AddedToken]:
    """Sort added tokens so that tokens missing from the vocabulary get their stored ids.

    Args:
        added_tokens: Dict from the content of a token to the added token.
        new_ids: Dict from the content of a token to its stored id and the file that contains the id.
        ids_by_token: Dict from the content of a token in the vocabulary to its id.
        vocabulary_size: Number of tokens in the vocabulary, which is the first new id.

    Raises:
        PresetError: If the new ids are not consecutive.
    """
    tokens_in_vocabulary = [token for token in added_tokens if token in ids_by_token]
    tokens_with_id = sorted(new_ids.keys() - ids_by_token.keys(), key=new_ids.__getitem__)
    tokens_without_id = [token for token in added_tokens if token not in {*tokens_in_vocabulary, *tokens_with_id}]
    for next_id, token in enumerate(tokens_with_id, vocabulary_size):
        id, file = new_ids[token]
        if id != next_id:
            raise PresetError(f"{file} adds the token {token!r} with the id {id}, but {next_id} is the next one.")
    return [added_tokens[token] for token in (*tokens_in_vocabulary, *tokens_with_id, *tokens_without_id)]


def _list_mentions(files: JsonFiles, pipeline: JsonObject | None) -> Iterator[tuple[Path, str, int | None, Any]]:
    """Yield every mention of a token in the files.

    As in transformers, the last mention of a token counts.

    Yields:
        The path of the file, the attribute or "", the id or None, and the token as a string or an object of flags.
    """
    directory = files.directory
    for token in (pipeline or {}).get("added_tokens") or []:
        yield directory / PIPELINE_FILE, "", token.get("id"), token
    for token, id in files.read_if_present(_ADDED_FILE).items():
        yield directory / _ADDED_FILE, "", id, token
    for name in (_NAMES_FILE, SETTINGS_FILE):
        file = directory / name
        content = files.read_if_present(name)
        for key, value in content.items():
            if key.endswith("_token") and isinstance(value, (str, dict)):
                yield file, key, None, value
        for key in _MORE_TOKENS:
            tokens = content.get(key) or []
            yield from ((file, key, None, token) for token in (tokens.values() if isinstance(tokens, dict) else tokens))
        for id, token in (content.get("added_tokens_decoder") or {}).items():
            yield file, "", int(id), token
