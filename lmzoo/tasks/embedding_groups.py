"""Groups of texts that an embedding model learns from: pairs, triples, and pairs with several negatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# Objective -> names of the columns of its groups, for messages. All but "contrastive" take exactly these columns.
_COLUMN_NAMES = {
    "contrastive": ("firsts", "seconds"),
    "triplet": ("anchors", "positives", "negatives"),
    "cosine": ("firsts", "seconds"),
    "cosent": ("firsts", "seconds"),
    "angle": ("firsts", "seconds"),
}
OBJECTIVES = tuple(_COLUMN_NAMES)


def check_groups(columns: Sequence[Sequence[Any]], objective: str) -> None:
    """Check that an objective can learn from groups of texts, given as columns.

    Args:
        columns: columns of texts, each a string or a list of words.
        objective: the task's objective.

    Raises:
        ValueError: If the number of columns does not fit the objective, or if a negative equals the first or the second
            text of its group, or the second text of another group with the same first text.
    """
    column_names = _COLUMN_NAMES[objective]
    joined_names = ", ".join(column_names)
    group_size = len(columns)
    if group_size == 1:
        group_noun, count_word = ("pairs", "two") if len(column_names) == 2 else ("triples", "three")
        advice = " For pairs that differ only in dropout, pass (texts, texts)." if len(column_names) == 2 else ""
        raise ValueError(
            f"TextEmbedder is trained on {group_noun} of texts: pass ({joined_names}), {count_word} lists, or a list "
            f"of {len(column_names)}-tuples.{advice}"
        )
    if group_size != len(column_names) and objective != "contrastive":
        raise ValueError(
            f'`objective="{objective}"` learns from groups of {len(column_names)} texts, ({joined_names}), got groups '
            f'of {group_size}. Choose "contrastive" for pairs without labels, and for pairs with any number of '
            "negatives."
        )
    _check_negatives([list(map(_as_key, column)) for column in columns])


def _check_negatives(columns: list[list[Any]]) -> None:
    """Check that no negative equals its group's first text, or a text that this first text should match."""
    firsts, seconds, *negatives = columns
    if not negatives:
        return
    example_of_pair: dict[Any, int] = {}
    for i, pair in enumerate(zip(firsts, seconds, strict=True)):
        example_of_pair.setdefault(pair, i)
    for i, (first, texts) in enumerate(zip(firsts, zip(*negatives, strict=True), strict=True)):
        for negative in texts:
            if negative == first:
                problem = "is its first text"
            elif (example := example_of_pair.get((first, negative))) is not None:
                problem = "is its second text" if example == i else f"is the second text of example {example}"
            else:
                continue
            raise ValueError(
                f"A negative of example {i}, {_as_text(negative)!r:.60}, {problem}: the model would learn that the "
                "same texts match and do not match. Remove the example, or choose another negative."
            )


def number_texts(columns: Sequence[Sequence[Any]]) -> np.ndarray:
    """Return a number, int64 (n, K), for each text in K columns of n texts; equal texts have equal numbers."""
    ids: dict[Any, int] = {}
    return np.array([[ids.setdefault(_as_key(text), len(ids)) for text in column] for column in columns], "int64").T


def _as_key(text: Any) -> Any:
    return text if isinstance(text, str) else tuple(text)


def _as_text(key: Any) -> str:
    return key if isinstance(key, str) else " ".join(key)
