"""Assigns the tokens of a text to its words, by the characters that both came from."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from lmzoo.text.tokenizers.tokenizer import TokenSpan


def tokens_of_words(words: Sequence[tuple[str, int, int]], spans: Sequence[TokenSpan]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of each word of a text.

    A token belongs to the word that contains most of its characters, the first one on ties. A word to which no token
    belongs shares the tokens that cover part of it. For BERT "can't" is "can", "'", "t": the word "ca" has the first of
    them, "n't" the others. If "can't" were one token, both words would have it.

    Args:
        words: `(word, start, end)`, in order, without overlaps; see `lmzoo.text.word_splitting.split_words`.
        spans: the tokens of the same text; see `Tokenizer.tokenize_with_offsets`.

    Returns:
        Two int64 (n,): indices of words, rising, and of the tokens that belong to them. Words without characters, or
        whose characters the tokenizer drops, are not among them.
    """
    starts, ends = [start for _, start, _ in words], [end for _, _, end in words]
    owned: dict[int, list[int]] = {}
    shared: dict[int, list[int]] = {}
    for index, span in enumerate(spans):
        touched = range(bisect_right(ends, span.start), bisect_left(starts, span.end))
        covered = {w: min(ends[w], span.end) - max(starts[w], span.start) for w in touched}
        if not covered or not (most := max(covered.values())):
            continue
        owner = next(w for w, count in covered.items() if count == most)
        owned.setdefault(owner, []).append(index)
        for w, count in covered.items():
            if count and w != owner:
                shared.setdefault(w, []).append(index)
    of_word = shared | owned
    return (
        np.array([w for w in sorted(of_word) for _ in of_word[w]], "int64"),
        np.array([index for w in sorted(of_word) for index in of_word[w]], "int64"),
    )
