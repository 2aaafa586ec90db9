"""Which tokens make up which word, by the characters of the text that both came from."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from lmzoo.text.tokenizers.tokenizer import TokenSpan


def tokens_of_words(words: Sequence[tuple[str, int, int]], spans: Sequence[TokenSpan]) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of each word of a text.

    A token belongs to the word that most of its characters are in, the first one on ties. A word to which none belongs
    that way shares the tokens that cover some of it: for BERT "can't" is "can", "'", "t", and the word "ca" has the
    first of them, "n't" the others; but if "can't" were one token, both words would have it.

    Args:
        words: `(word, start, end)`, in order, without overlaps; see `lmzoo.text.word_splitting.split_words`.
        spans: of the same text; see `Tokenizer.tokenize_with_offsets`.

    Returns:
        Int64 (n,) indices of words, rising, and int64 (n,) of the tokens that go with them. A word without any
        characters, or whose characters the tokenizer leaves out, is not among them.
    """
    starts, ends = [start for _, start, _ in words], [end for _, _, end in words]
    owned: dict[int, list[int]] = {}
    shared: dict[int, list[int]] = {}
    for index, piece in enumerate(spans):
        touched = range(bisect_right(ends, piece.start), bisect_left(starts, piece.end))
        covered = {w: min(ends[w], piece.end) - max(starts[w], piece.start) for w in touched}
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
