"""Interpolated modified Kneser-Ney smoothing (Chen and Goodman, 1999; estimates as those of KenLM).

S. F. Chen and J. Goodman, An empirical study of smoothing techniques for language modeling, Computer Speech and
Language 13 (1999): equations 16, 17 and 26. Let c(h, w) be the count of w after the context h, and h' the context h
without its first word:

    p(w | h) = (c(h, w) - D(c(h, w))) / c(h) + b(h) p(w | h')
    b(h) = (D1 N1(h) + D2 N2(h) + D3 N3+(h)) / c(h)

c(h) is the sum of the counts after h, and N1(h), N2(h) and N3+(h) are the numbers of words that were counted once,
twice and more often after h. The discount D(c) is 0 for 0, D1 for 1, D2 for 2, and D3 from 3 on. Each order has
discounts of its own, where n1 to n4 are the numbers of n-grams that were counted so often:

    Y = n1 / (n1 + 2 n2)    D1 = 1 - 2 Y n2 / n1    D2 = 2 - 3 Y n3 / n2    D3 = 3 - 4 Y n4 / n3

In the highest order, counts are those of the text. In lower ones, the count of an n-gram is the number of different
words before it; but an n-gram that begins with the beginning of a sentence, before which there is no word, keeps its
count in the text. The distribution below unigrams is uniform over all tokens but `<s>`, which is never predicted.

The paper leaves open how sentences begin. Here, as in KenLM (Heafield et al., Scalable modified Kneser-Ney language
model estimation, ACL 2013), one `<s>` precedes each sentence, and n-grams do not reach beyond it.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass

import numpy as np

from lmzoo.ngrams.table import NEVER, START, NgramTable

Discounts = tuple[float, float, float]

FALLBACK: Discounts = (0.5, 1.0, 1.5)  # where a text is too small to estimate them; those of lmplz --discount_fallback


@dataclass(frozen=True)
class _Counts:
    """The n-grams of one order: their keys, how often they occur, and which n-gram each is without its first token."""

    keys: np.ndarray
    counts: np.ndarray
    suffixes: np.ndarray
    starts: np.ndarray  # whether a sentence starts with it


def estimate(tokens: np.ndarray, vocabulary_size: int, order: int) -> tuple[NgramTable, list[Discounts]]:
    """Estimate a model.

    Args:
        tokens: int32 (T,), sentences one after the other; each begins with `START` and ends with `END`.
        vocabulary_size: int, V.
        order: int, length of the longest n-grams.

    Returns:
        The table, and the discounts of each order.
    """
    levels = _count(tokens, vocabulary_size, order)
    for level, longer in itertools.pairwise(levels):
        before = np.bincount(longer.suffixes, minlength=len(level.keys))
        np.copyto(level.counts, before, where=~level.starts)
    levels[0].counts[START] = 0
    found = [_discounts(level.counts) for level in levels]
    # Of the tokens of a small vocabulary none is rare. It matters little, since bigrams are used in most places.
    if missing := [n for n, amounts in enumerate(found, 1) if amounts is None and n >= min(order, 2)]:
        warnings.warn(
            f"The text is too small, or too unusual, to estimate the discounts of n-grams of the orders {missing}: "
            f"{FALLBACK} are used, as by KenLM's --discount_fallback.",
            stacklevel=3,
        )
    discounts = [amounts or FALLBACK for amounts in found]
    table = NgramTable([], [], [])
    lower = np.full(1, 1 / (vocabulary_size - 1))
    for level, amounts in zip(levels, discounts, strict=True):
        parents, size = level.keys // vocabulary_size, len(table.keys[-1]) if table.keys else 1
        taken = np.array([0.0, *amounts])[np.minimum(level.counts, 3)]  # (N,)
        totals = np.bincount(parents, level.counts, size)  # (N of the order below,)
        weights = np.divide(np.bincount(parents, taken, size), totals, out=np.ones(size), where=totals > 0)
        lower = (level.counts - taken) / totals[parents] + weights[parents] * lower[level.suffixes]
        table.keys.append(level.keys)
        table.log10.append(np.log10(lower).astype("float32"))
        if len(table.keys) > 1:
            table.backoff.append(np.log10(weights).astype("float32"))
    table.log10[0][START] = NEVER
    return table, discounts


def _count(tokens: np.ndarray, vocabulary_size: int, order: int) -> list[_Counts]:
    """Count the n-grams of each order from 1."""
    words = np.arange(vocabulary_size)
    counts = np.bincount(tokens, minlength=vocabulary_size)
    levels = [_Counts(words, counts, np.zeros_like(words), words == START)]
    numbers = tokens  # (T,), of the n-gram that ends with each token; -1 if it would reach beyond a sentence
    for n in range(2, order + 1):
        ends = 1 + np.flatnonzero((numbers[:-1] >= 0) & (tokens[1:] != START))
        keys = numbers[ends - 1].astype("int64") * vocabulary_size + tokens[ends]
        keys, first, found, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        first = ends[first]
        levels.append(_Counts(keys, counts, numbers[first], tokens[first - n + 1] == START))
        numbers = np.full(len(tokens), -1, "int32")
        numbers[ends] = found
    return levels


def _discounts(counts: np.ndarray) -> Discounts | None:
    """D1, D2 and D3 of an order, equation 26 of the paper; None if they cannot be estimated."""
    n1, n2, n3, n4 = (int(n) for n in np.bincount(np.minimum(counts, 5), minlength=6)[1:5])
    if not (n1 and n2 and n3 and n4):
        return None
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    return found if min(found) > 0 else None
