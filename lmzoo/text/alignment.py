"""Alignment of the tokens of a text with its words, by character offsets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from lmzoo.text.tokenizers.tokenizer import TokenSpan


def tokens_of_words(words: Sequence[tuple[str, int, int]], spans: Sequence[TokenSpan]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of each word of a text, aligned by character offsets.

    A token belongs to the word that contains most of its characters, the first word on ties. A word without tokens
    shares the tokens that cover a part of it. For example, BERT splits "can't" into "can", "'" and "t": the word "ca"
    has the first token, and "n't" the other two. If "can't" were one token, both words would have it.

    Args:
        words: list of `(word, start, end)`, in order, without overlaps, as from
            `lmzoo.text.word_splitting.split_words`.
        spans: list of `TokenSpan`, the tokens of the same text from `Tokenizer.tokenize_with_offsets`.

    Returns:
        Two int64 arrays (n,) for n pairs of a word and a token: the indices of the words, non-decreasing, and the
        indices of the tokens. Words without characters, and words whose characters the tokenizer drops, are omitted.
    """
    starts = [start for _, start, _ in words]
    ends = [end for _, _, end in words]
    main_tokens: dict[int, list[int]] = {}
    shared_tokens: dict[int, list[int]] = {}
    for token_index, span in enumerate(spans):
        word_range = range(bisect_right(ends, span.start), bisect_left(starts, span.end))
        overlaps = {
            word_index: min(ends[word_index], span.end) - max(starts[word_index], span.start)
            for word_index in word_range
        }
        if not overlaps or not (longest_overlap := max(overlaps.values())):
            continue
        main_word_index = next(word_index for word_index, overlap in overlaps.items() if overlap == longest_overlap)
        main_tokens.setdefault(main_word_index, []).append(token_index)
        for word_index, overlap in overlaps.items():
            if overlap and word_index != main_word_index:
                shared_tokens.setdefault(word_index, []).append(token_index)
    tokens_by_word = shared_tokens | main_tokens
    return (
        np.array([word_index for word_index in sorted(tokens_by_word) for _ in tokens_by_word[word_index]], "int64"),
        np.array(
            [token_index for word_index in sorted(tokens_by_word) for token_index in tokens_by_word[word_index]],
            "int64",
        ),
    )
