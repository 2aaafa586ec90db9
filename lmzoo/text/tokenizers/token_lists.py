"""Vocabularies as lists of tokens, and the files that hold them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmzoo.common.arguments import is_integer

_GAP = re.compile(r"\[no token \d+\]")


def in_order(ids: Mapping[str, int], has_gaps: bool = False) -> list[str]:
    """Return the tokens of a token -> id mapping in the order of their ids.

    Args:
        ids: the mapping.
        has_gaps: whether ids may be left out, up to half of them; they have the token "".

    Raises:
        ValueError: if `ids` is not such a mapping, two tokens share an id, or an id is left out.
    """
    numbers = ids.values() if isinstance(ids, Mapping) else (None,)  # files may hold anything
    if not all(is_integer(i) for i in numbers):
        raise ValueError("The vocabulary must be an object with an id for each token.")
    tokens = sorted(ids, key=ids.__getitem__)
    for first, second in itertools.pairwise(tokens):
        if ids[first] == ids[second]:
            raise ValueError(f"The id {ids[first]} belongs to two tokens, {first!r} and {second!r}.")
    if has_gaps:
        return _with_gaps(ids, tokens)
    for place, token in enumerate(tokens):
        found, last = ids[token], len(ids) - 1
        if found != place:
            gap = f" and no token has {place}" if found > place else ""
            raise ValueError(f"The ids must be 0 to {last}, with none left out, but {token!r} has {found}{gap}.")
    return tokens


def read_ids(file: Path) -> dict[str, int]:
    """Return the ids of tokens that a JSON file holds, for `in_order`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming the file, if it holds anything else.
    """
    try:
        ids = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} does not hold JSON: {error}") from None
    if not isinstance(ids, dict) or not all(map(is_integer, ids.values())):
        raise ValueError(f"{file} must hold an object with an id for each token.")
    return ids


def _with_gaps(ids: Mapping[str, int], tokens: Sequence[str]) -> list[str]:
    """List the tokens by id, with "" for each id that is left out; `tokens` are in the order of their ids."""
    last = 2 * len(ids) - 1
    if wrong := next((token for token in tokens if not 0 <= ids[token] <= last), None):
        raise ValueError(
            f"{wrong!r} has the id {ids[wrong]}, but {len(ids)} tokens must have ids from 0 to {last}: no more than "
            "half of them may be left out."
        )
    listed = [""] * (ids[tokens[-1]] + 1 if tokens else 0)
    for token, id in ids.items():
        listed[id] = token
    return listed


def ids_of(tokens: Iterable[str]) -> dict[str, int]:
    """Return a token -> id mapping for tokens in the order of their ids, without those that are ""."""
    return {token: id for id, token in enumerate(tokens) if token}


def entries_of(tokens: Iterable[str]) -> dict[str, int]:
    """Return a token -> id mapping with an entry for each id, as `tokenizers` needs it to number what is added.

    The entry of an id without a token has spaces in it, and so is no part of a word.
    """
    return {token or f"[no token {id}]": id for id, token in enumerate(tokens)}


def tokens_of_entries(entries: Iterable[str]) -> list[str]:
    """Return the tokens whose `entries_of` these are."""
    return ["" if _GAP.fullmatch(entry) else entry for entry in entries]


def to_list(ids: Any) -> list[Any]:
    """Return ids, or rows of ids, as a list; they may be an array or a tensor of any library."""
    if isinstance(ids, list):
        return ids
    if hasattr(ids, "numpy"):
        ids = ids.numpy()
    return ids.tolist() if hasattr(ids, "tolist") else list(ids)


def check_is_vocabulary(tokens: object) -> None:
    """Check that a vocabulary is a list of strings.

    Raises:
        TypeError: if it is not, naming the first entry that is not a string.
    """
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
        raise TypeError(f"`vocabulary` must be a list of tokens, got {tokens!r:.60}.")
    for index, token in enumerate(tokens):
        if not isinstance(token, str):
            raise TypeError(f"`vocabulary[{index}]` must be a string, got {token!r:.60}.")


def read_lines(path: Path) -> list[str]:
    r"""Return the lines of a vocabulary file, whose line ends are LF or CRLF.

    It is split at "\n" only: a token may hold other characters that `str.splitlines` takes for line ends.
    """
    text = read_utf8(path)
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def read_utf8(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ValueError: naming the file, if it is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8: its byte {error.start} is 0x{error.object[error.start]:02x}. Fetch or save it "
            "again, or convert it to UTF-8."
        ) from None


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines so that `read_lines` reads them."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
