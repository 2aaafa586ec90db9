"""Splitting of users' inputs into columns: one for single texts, two for pairs, or more for larger groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, ValuesView
from typing import Any

from lmzoo.text.validate_text import clean_columns, is_column, is_text


def split_segments(x: Any, words: bool = False) -> tuple[Sequence[Any], Sequence[Any] | None]:
    """Split `x` into the first and second texts of pairs, or into single texts and None.

    A tuple holds segments, a list holds examples: `(firsts, seconds)` and `[(first, second), ...]` are pairs, and
    everything else is single texts. With `words` a list inside a list is one text, split into words, rather than a
    pair.

    Raises:
        TypeError: If `x` is not a list of texts.
        ValueError: If `x` is an array of more than one axis or a tuple of anything but two columns, or if only some
            examples in a list are pairs.
    """
    if isinstance(x, Mapping):
        raise TypeError(f"Expected texts, got a dict of {sorted(map(str, x))}; `predict` takes token features.")
    if is_text(x):
        raise TypeError(f"Expected a list of texts, got one string; write [{x!r:.40}].")
    if not is_column(x):
        raise TypeError(f"Expected a list of texts, got {x!r:.60} ({type(x).__name__}).")
    if isinstance(x, (Sequence, ValuesView)) and not isinstance(x, (tuple, list)):
        x = list(x)
    if getattr(x, "ndim", 1) > 1:
        raise ValueError(f"Expected one text per row, got an array of shape {x.shape}; pairs are (x[:, 0], x[:, 1]).")
    if isinstance(x, tuple):
        if len(x) != 2 or not all(map(is_column, x)):
            hint = " One pair is [(first, second)]." if len(x) == 2 else ""
            raise ValueError(f"A tuple means pairs, (firsts, seconds), each a list of texts; got {x!r:.60}.{hint}")
        return x
    pair_types = tuple if words else (tuple, list)
    if isinstance(x, list) and any(isinstance(item, pair_types) for item in x):
        for position, item in enumerate(x):
            if not isinstance(item, pair_types) or len(item) != 2:
                raise ValueError(f"`x[{position}]` must be a pair (first, second), got {item!r:.60}.")
        return [item[0] for item in x], [item[1] for item in x]
    return x, None


def clean_segments(x: Any, words: bool = False) -> list[list[Any]]:
    """Split `x` with `split_segments` and clean the texts: return one list for single texts, two for pairs.

    Raises:
        TypeError: If `x` is not a list of texts, or an entry is not text.
        ValueError: If `split_segments` cannot split `x`.
    """
    columns = [column for column in split_segments(x, words) if column is not None]
    return clean_columns(dict(zip(("texts", "pairs"), columns, strict=False)), words)


def clean_single_texts(name: str, x: Any, words: bool = False) -> list[Any]:
    """Check that `x` is a list of single texts, and return the cleaned texts.

    Args:
        name: name of the argument with the texts, for messages.
        x: the texts.
        words: bool, whether a list in `x` is one text, split into words.

    Raises:
        TypeError: If `x` is not a list of texts, or an entry is not text.
        ValueError: If `x` holds pairs, or `split_segments` cannot split it.
    """
    firsts, seconds = split_segments(x, words)
    if seconds is not None:
        raise ValueError(f"`{name}` must be a list of single texts, got pairs.")
    return clean_columns({name: firsts}, words)[0]


def clean_groups(x: Any, words: bool = False) -> list[list[Any]]:
    """Split `x` into columns of texts that belong together, and clean the texts.

    A tuple holds columns, a list holds groups: `(firsts, seconds, thirds)` or `[(first, second, third), ...]`, with any
    number of texts in a group. Single texts and pairs are split as by `clean_segments`, into one and two columns.

    Raises:
        TypeError: If `x` is not a list of texts, or an entry is not text.
        ValueError: If columns or groups differ in their number of texts, or `split_segments` cannot split `x`.
    """
    columns = _split_groups(x, tuple if words else (tuple, list))
    if columns is None:
        columns = clean_segments(x, words)
    else:
        negatives = [f"negatives_{i}" for i in range(1, len(columns) - 1)] if len(columns) > 3 else ["negatives"]
        columns = clean_columns(dict(zip(("texts", "pairs", *negatives), columns, strict=True)), words)
    column_lengths = [len(column) for column in columns]
    if len(set(column_lengths)) > 1:
        raise ValueError(f"Texts that belong together need columns of equal length, got {column_lengths} texts.")
    return columns


def _split_groups(x: Any, group_types: Any) -> list[Any] | None:
    """Return the columns of groups of more than two texts, or None for anything else.

    Raises:
        ValueError: If groups in a list differ in their number of texts.
    """
    if isinstance(x, tuple):
        return [*x] if len(x) > 2 and all(map(is_column, x)) else None
    items: list[Any] = x if isinstance(x, list) else []
    sizes = [len(item) if isinstance(item, group_types) else 0 for item in items]
    if not sizes or sizes[0] < 3:
        return None
    for position, (item, size) in enumerate(zip(x, sizes, strict=True)):
        if size != sizes[0]:
            raise ValueError(f"`x[{position}]` must have {sizes[0]} texts, as `x[0]` has, got {item!r:.60}.")
    return [list(column) for column in zip(*x, strict=True)]
