"""Vocabularies as lists of tokens and as mappings to ids, and their files."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmzoo.common.arguments import is_integer

_GAP = re.compile(r"\[no token \d+\]")


def in_order(ids: Mapping[str, int], allow_gaps: bool = False) -> list[str]:
    """Return the tokens of a mapping from tokens to ids, in order of their ids.

    Args:
        ids: dict from tokens to ids.
        allow_gaps: bool, whether up to half of the ids may be missing. Missing ids and the placeholders of
            `make_token_entries` are returned as "".

    Raises:
        ValueError: If `ids` is not a mapping to integers, two tokens share an id, an id is negative, or more ids are
            missing than allowed.
    """
    id_values = ids.values() if isinstance(ids, Mapping) else (None,)  # the value may come from any file
    if not all(is_integer(i) for i in id_values):
        raise ValueError("The vocabulary must be an object with an id for each token.")
    tokens = sorted(ids, key=ids.__getitem__)
    for first, second in itertools.pairwise(tokens):
        if ids[first] == ids[second]:
            raise ValueError(f"The id {ids[first]} belongs to two tokens, {first!r} and {second!r}.")
    if allow_gaps:
        return remove_placeholders(_fill_gaps(ids, tokens))
    last_id = len(ids) - 1
    for expected_id, token in enumerate(tokens):
        id = ids[token]
        if id != expected_id:
            gap_message = f" and no token has {expected_id}" if id > expected_id else ""
            raise ValueError(
                f"The ids must be 0 to {last_id}, with none left out, but {token!r} has {id}{gap_message}."
            )
    return tokens


def read_ids(file: Path) -> dict[str, int]:
    """Read the mapping from tokens to ids in a JSON file, for `in_order`.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file does not hold a JSON object of integers; the message names the file.
    """
    try:
        ids = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} does not hold JSON: {error}") from None
    if not isinstance(ids, dict) or not all(map(is_integer, ids.values())):
        raise ValueError(f"{file} must hold an object with an id for each token.")
    return ids


def _fill_gaps(ids: Mapping[str, int], tokens: Sequence[str]) -> list[str]:
    """Return the tokens in order of their ids, with "" for each missing id; `tokens` are the sorted keys of `ids`.

    Raises:
        ValueError: If an id is negative, or more than half of the ids are missing.
    """
    last_id = 2 * len(ids) - 1
    invalid_token = next((token for token in tokens if not 0 <= ids[token] <= last_id), None)
    if invalid_token is not None:
        raise ValueError(
            f"{invalid_token!r} has the id {ids[invalid_token]}, but {len(ids)} tokens must have ids from 0 to "
            f"{last_id}: no more than half of them may be left out."
        )
    tokens_by_id = [""] * (ids[tokens[-1]] + 1 if tokens else 0)
    for token, id in ids.items():
        tokens_by_id[id] = token
    return tokens_by_id


def make_token_ids(tokens: Sequence[str]) -> dict[str, int]:
    """Return a mapping from tokens to ids, given tokens in order of their ids.

    Ids without a token are omitted, except for the last id, so that `in_order` returns as many tokens.
    """
    last_id = len(tokens) - 1
    return {entry: id for entry, id in make_token_entries(tokens).items() if tokens[id] or id == last_id}


def make_token_entries(tokens: Iterable[str]) -> dict[str, int]:
    """Return a mapping from tokens to ids without gaps, which `tokenizers` needs to number added tokens.

    An id without a token gets a placeholder that contains spaces, and therefore never matches a part of a word.
    """
    return {token or f"[no token {id}]": id for id, token in enumerate(tokens)}


def remove_placeholders(entries: Iterable[str]) -> list[str]:
    """Return the tokens from the keys of `make_token_entries`, with "" in place of each placeholder."""
    return ["" if _GAP.fullmatch(entry) else entry for entry in entries]


def to_list(ids: Any) -> list[Any]:
    """Convert ids, or rows of ids, from an array or tensor of any library to a list."""
    if isinstance(ids, list):
        return ids
    if hasattr(ids, "numpy"):
        ids = ids.numpy()
    return ids.tolist() if hasattr(ids, "tolist") else list(ids)


def check_is_vocabulary(tokens: object) -> None:
    """Check that a vocabulary is a list, or another iterable, of strings.

    Raises:
        TypeError: If `tokens` is a string or not iterable, or an entry is not a string; the message names the position
            of the first such entry.
    """
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
        raise TypeError(f"`vocabulary` must be a list of tokens, got {tokens!r:.60}.")
    for index, token in enumerate(tokens):
        if not isinstance(token, str):
            raise TypeError(f"`vocabulary[{index}]` must be a string, got {token!r:.60}.")


def read_lines(path: Path) -> list[str]:
    r"""Return the lines of a vocabulary file with LF or CRLF line ends.

    The file is split at "\n" only: a token may contain other characters that `str.splitlines` treats as line ends.
    """
    text = read_utf8(path)
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def read_utf8(path: Path) -> str:
    """Return the text of a UTF-8 file.

    Raises:
        ValueError: If the file is not UTF-8; the message names the file.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8: its byte {error.start} is 0x{error.object[error.start]:02x}. Fetch or save it "
            "again, or convert it to UTF-8."
        ) from None


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a UTF-8 file, each ending in LF.

    Raises:
        ValueError: If a line contains a line end, which `read_lines` would split or strip.
    """
    lines = list(lines)
    if token := next((line for line in lines if "\n" in line or line.endswith("\r")), None):
        raise ValueError(
            f"{path.name} has one token per line and cannot hold {token!r}. Leave that token out of the vocabulary; "
            "`add_tokens` adds it with an id after the vocabulary."
        )
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
