"""N-gram probabilities in sorted arrays, and token probabilities by backoff."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# The first tokens of every vocabulary.
UNKNOWN, START, END = 0, 1, 2

NEVER = -99.0  # log10 probability of `START`, as in ARPA files


@dataclass(frozen=True)
class NgramTable:
    """N-grams of a backoff model, as a trie in sorted arrays.

    An n-gram's parent is the n-gram without its last token. The n-grams of an order are numbered in the order of their
    keys. The key of an n-gram is its parent's number times the size of the vocabulary, plus its last token, so that the
    children of an n-gram are adjacent and can be looked up by binary search. Unigrams have no parent; their numbers are
    their tokens.

    If a token's context and the token are an n-gram of the table, the token has the n-gram's probability. Otherwise,
    its probability is the probability after the context without its first token, times the context's backoff weight,
    which is 1 for contexts that are not in the table.

    Attributes:
        keys: int64 (N,) for each order from 1, rising.
        log10: float32 (N,) for each order, base-10 logarithms of probabilities.
        backoff: float32 (N,) for each order except the highest, base-10 logarithms of backoff weights.
    """

    keys: list[np.ndarray]
    log10: list[np.ndarray]
    backoff: list[np.ndarray]

    @property
    def order(self) -> int:
        """Length of the longest n-grams."""
        return len(self.keys)

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, V."""
        return len(self.keys[0])

    def find(self, order: int, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return the numbers of n-grams, int64 (n,), -1 for n-grams that are not in the table.

        Args:
            order: length of the n-grams, at least 2.
            parents: int (n,), numbers of their parents, -1 for parents that are not in the table.
            tokens: int (n,), last tokens of the n-grams.
        """
        return find_keys(self.keys[order - 1], parents.astype("int64") * self.vocabulary_size + tokens, parents >= 0)

    def log_probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """Return the natural log-probability of each token given the tokens before it, float64 (T,).

        Args:
            tokens: int (T,). `START` begins a sentence, which does not depend on earlier tokens; the result for `START`
                itself is meaningless.
        """
        numbers = tokens.astype("int64")  # (T,), numbers of the n-grams that end with each token
        log10 = self.log10[0][numbers].astype("float64")  # (T,)
        for order in range(2, self.order + 1):
            parents = np.concatenate([[-1], numbers[:-1]])  # (T,)
            numbers = self.find(order, parents, tokens)
            weights = _take(self.backoff[order - 2], parents)
            log10 = np.where(numbers >= 0, _take(self.log10[order - 1], numbers), log10 + weights)
        return log10 * math.log(10)

    def next_log_probabilities(self, context: Sequence[int]) -> np.ndarray:
        """Return the natural log-probability of every token after a context, float64 (V,)."""
        log10 = self.log10[0].astype("float64")  # (V,)
        for order in range(1, min(self.order, len(context) + 1)):
            number = self._find_number(context[-order:])
            if number >= 0:
                start = number * self.vocabulary_size
                first, last = np.searchsorted(self.keys[order], [start, start + self.vocabulary_size])
                log10 += self.backoff[order - 1][number]
                log10[self.keys[order][first:last] - start] = self.log10[order][first:last]
        return log10 * math.log(10)

    def _find_number(self, tokens: Sequence[int]) -> int:
        """Return the number of an n-gram, or -1 if it is not in the table."""
        number = np.array(tokens[:1])
        for order, token in enumerate(tokens[1:], 2):
            number = self.find(order, number, np.array([token]))
        return int(number[0])


def _take(values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the values of n-grams by number, 0 for the number -1; `values` may be empty."""
    results = np.zeros(len(numbers), values.dtype)
    is_valid = numbers >= 0
    results[is_valid] = values[numbers[is_valid]]
    return results


def find_keys(keys: np.ndarray, queries: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Return the indices of keys in a sorted array.

    Args:
        keys: int64 (N,), sorted.
        queries: int64 (n,), keys to look up.
        valid: bool (n,), False for keys that need no lookup.

    Returns:
        int64 (n,), -1 for keys that are missing or not valid.
    """
    if not len(keys):
        return np.full(len(queries), -1)
    indices = np.searchsorted(keys, queries)
    is_present = valid & (keys[np.minimum(indices, len(keys) - 1)] == queries)
    return np.where(is_present, indices, -1)
