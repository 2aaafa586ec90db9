"""Interpolated modified Kneser-Ney smoothing (Chen and Goodman, 1999), with the same estimates as KenLM.

S. F. Chen and J. Goodman, An empirical study of smoothing techniques for language modeling, Computer Speech and
Language 13 (1999): equations 16, 17 and 26. Let c(h, w) be the count of w after the context h, and h' the context h
without its first word:

    p(w | h) = (c(h, w) - D(c(h, w))) / c(h) + b(h) p(w | h')
    b(h) = (D1 N1(h) + D2 N2(h) + D3 N3+(h)) / c(h)

c(h) is the sum of the counts after h, and N1(h), N2(h) and N3+(h) are the numbers of words with counts 1, 2, and 3 or
more after h. The discount D(c) is 0 for c = 0, D1 for 1, D2 for 2, and D3 for 3 or more. Each order has its own
discounts, computed from the numbers n1 to n4 of n-grams with counts 1 to 4:

    Y = n1 / (n1 + 2 n2)    D1 = 1 - 2 Y n2 / n1    D2 = 2 - 3 Y n3 / n2    D3 = 3 - 4 Y n4 / n3

In the highest order, c is the number of occurrences in the text. In lower orders, it is the number of different words
before the n-gram, except that an n-gram at the beginning of a sentence, which no word precedes, keeps its number of
occurrences. The distribution below unigrams is uniform over all tokens except `<s>`, which is never predicted.

The paper does not say how sentences begin. Here, as in KenLM (Heafield et al., Scalable modified Kneser-Ney language
model estimation, ACL 2013), one `<s>` precedes each sentence, and n-grams do not extend beyond it.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass

import numpy as np

from lmzoo.ngrams.table import NEVER, START, NgramTable

Discounts = tuple[float, float, float]

FALLBACK: Discounts = (0.5, 1.0, 1.5)  # for texts too small to estimate discounts; as in lmplz --discount_fallback


@dataclass(frozen=True)
class _Counts:
    """The N n-grams of one order and their counts.

    Attributes:
        keys: int64 (N,), key of each n-gram, in ascending order; see `NgramTable`.
        counts: int64 (N,), number of occurrences of each n-gram; in lower orders, `estimate` replaces it by the number
            of different words before the n-gram.
        suffixes: int (N,), index of each n-gram's suffix, the n-gram without its first token, in the next lower order.
        starts: bool (N,), whether each n-gram begins with `START`.
    """

    keys: np.ndarray
    counts: np.ndarray
    suffixes: np.ndarray
    starts: np.ndarray


def estimate(tokens: np.ndarray, vocabulary_size: int, order: int) -> tuple[NgramTable, list[Discounts]]:
    """Estimate an n-gram model from tokens.

    Discounts that cannot be estimated are `FALLBACK`, with a warning except for unigrams of a model of higher order.

    Args:
        tokens: int32 (T,), the T tokens of all sentences; each sentence begins with `START` and ends with `END`.
        vocabulary_size: int, number of tokens in the vocabulary.
        order: int, length of the longest n-grams.

    Returns:
        The n-grams with their probabilities, and the discounts of each order.
    """
    levels = _count_ngrams(tokens, vocabulary_size, order)
    for level, next_level in itertools.pairwise(levels):
        num_predecessors = np.bincount(next_level.suffixes, minlength=len(level.keys))
        np.copyto(level.counts, num_predecessors, where=~level.starts)
    levels[0].counts[START] = 0
    estimated_discounts = [_estimate_discounts(level.counts) for level in levels]
    # No warning for unigrams: a small vocabulary has no rare tokens, and most predictions use longer n-grams.
    if missing_orders := [
        n for n, order_discounts in enumerate(estimated_discounts, 1) if order_discounts is None and n >= min(order, 2)
    ]:
        warnings.warn(
            "The text is too small, or too unusual, to estimate the discounts of n-grams of the orders "
            f"{missing_orders}: {FALLBACK} are used, as by KenLM's --discount_fallback.",
            stacklevel=3,
        )
    discounts = [order_discounts or FALLBACK for order_discounts in estimated_discounts]
    table = NgramTable([], [], [])
    probabilities = np.full(1, 1 / (vocabulary_size - 1))
    for level, order_discounts in zip(levels, discounts, strict=True):
        parents = level.keys // vocabulary_size
        num_parents = len(table.keys[-1]) if table.keys else 1
        ngram_discounts = np.array([0.0, *order_discounts])[np.minimum(level.counts, 3)]  # (N,)
        parent_counts = np.bincount(parents, level.counts, num_parents)  # (number of parents,)
        backoff = np.divide(
            np.bincount(parents, ngram_discounts, num_parents),
            parent_counts,
            out=np.ones(num_parents),
            where=parent_counts > 0,
        )
        probabilities = (level.counts - ngram_discounts) / parent_counts[parents] + backoff[parents] * probabilities[
            level.suffixes
        ]
        table.keys.append(level.keys)
        table.log10.append(np.log10(probabilities).astype("float32"))
        if len(table.keys) > 1:
            table.backoff.append(np.log10(backoff).astype("float32"))
    table.log10[0][START] = NEVER
    return table, discounts


def _count_ngrams(tokens: np.ndarray, vocabulary_size: int, order: int) -> list[_Counts]:
    """Return the n-grams of each order from 1 to `order`, with their counts."""
    unigrams = np.arange(vocabulary_size)
    counts = np.bincount(tokens, minlength=vocabulary_size)
    levels = [_Counts(unigrams, counts, np.zeros_like(unigrams), unigrams == START)]
    ngram_indices = tokens  # (T,), index of the n-gram that ends with each token; -1 if it crosses sentences
    for n in range(2, order + 1):
        ends = 1 + np.flatnonzero((ngram_indices[:-1] >= 0) & (tokens[1:] != START))
        keys = ngram_indices[ends - 1].astype("int64") * vocabulary_size + tokens[ends]
        keys, first_occurrences, inverse_indices, counts = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        first_ends = ends[first_occurrences]
        levels.append(_Counts(keys, counts, ngram_indices[first_ends], tokens[first_ends - n + 1] == START))
        ngram_indices = np.full(len(tokens), -1, "int32")
        ngram_indices[ends] = inverse_indices
    return levels


def _estimate_discounts(counts: np.ndarray) -> Discounts | None:
    """Return the discounts D1, D2 and D3 of an order (equation 26), or None if they cannot be estimated."""
    n1, n2, n3, n4 = (int(n) for n in np.bincount(np.minimum(counts, 5), minlength=6)[1:5])
    if not (n1 and n2 and n3 and n4):
        return None
    y = n1 / (n1 + 2 * n2)
    discounts = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    return discounts if min(discounts) > 0 else None
