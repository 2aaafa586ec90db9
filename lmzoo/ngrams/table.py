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

    An n-gram's parent is the n-gram without its last token. The index of an n-gram is its position among the n-grams of
    its order, sorted by key. Its key is its parent's index times the size of the vocabulary, plus its last token, so
    that the children of an n-gram are adjacent and can be looked up by binary search. Unigrams have no parent; their
    indices are their tokens.

    If a token's context and the token are an n-gram of the table, the token has the n-gram's probability. Otherwise,
    the token has its probability after the context without the context's first token, times the context's backoff
    weight, which is 1 for contexts that are not in the table.

    Attributes:
        keys: list of int64 (N,), for each order from 1 the keys of its N n-grams, in ascending order.
        log10: list of float32 (N,), for each order the base-10 logarithms of the probabilities.
        backoff: list of float32 (N,), for each order except the highest the base-10 logarithms of the backoff weights.
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
        """Number of tokens in the vocabulary."""
        return len(self.keys[0])

    def find(self, order: int, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return the index of each of m n-grams, int64 (m,), or -1 if the n-gram is not in the table.

        Args:
            order: length of the n-grams, at least 2.
            parents: int (m,), index of the parent of each n-gram, or -1 if the parent is not in the table.
            tokens: int (m,), last token of each n-gram.
        """
        return find_keys(self.keys[order - 1], parents.astype("int64") * self.vocabulary_size + tokens, parents >= 0)

    def log_probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """Return the natural log-probability of each token given the tokens before it, float64 (T,).

        Args:
            tokens: int (T,), the T tokens of consecutive sentences. Each sentence begins with `START` and does not
                depend on earlier tokens; the result for `START` itself is meaningless.
        """
        ngram_indices = tokens.astype("int64")  # (T,), indices of the n-grams that end with each token
        log10 = self.log10[0][ngram_indices].astype("float64")  # (T,)
        for order in range(2, self.order + 1):
            context_indices = np.concatenate([[-1], ngram_indices[:-1]])  # (T,)
            ngram_indices = self.find(order, context_indices, tokens)
            weights = _take(self.backoff[order - 2], context_indices)
            log10 = np.where(ngram_indices >= 0, _take(self.log10[order - 1], ngram_indices), log10 + weights)
        return log10 * math.log(10)

    def next_log_probabilities(self, context: Sequence[int]) -> np.ndarray:
        """Return the natural log-probability of each of the V tokens after a context, float64 (V,)."""
        log10 = self.log10[0].astype("float64")  # (V,)
        for order in range(1, min(self.order, len(context) + 1)):
            context_index = self._find_number(context[-order:])
            if context_index >= 0:
                first_key = context_index * self.vocabulary_size
                first_index, end_index = np.searchsorted(
                    self.keys[order], [first_key, first_key + self.vocabulary_size]
                )
                log10 += self.backoff[order - 1][context_index]
                log10[self.keys[order][first_index:end_index] - first_key] = self.log10[order][first_index:end_index]
        return log10 * math.log(10)

    def _find_number(self, tokens: Sequence[int]) -> int:
        """Return the index of an n-gram, or -1 if it is not in the table."""
        ngram_index = np.array(tokens[:1])
        for order, token in enumerate(tokens[1:], 2):
            ngram_index = self.find(order, ngram_index, np.array([token]))
        return int(ngram_index[0])


def _take(values: np.ndarray, ngram_indices: np.ndarray) -> np.ndarray:
    """Return the value of each n-gram by its index, or 0 for the index -1; `values` may be empty."""
    ngram_values = np.zeros(len(ngram_indices), values.dtype)
    is_valid = ngram_indices >= 0
    ngram_values[is_valid] = values[ngram_indices[is_valid]]
    return ngram_values


def find_keys(keys: np.ndarray, queries: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Return the indices of keys in a sorted array.

    Args:
        keys: int64 (N,), the sorted array.
        queries: int64 (m,), keys to look up.
        valid: bool (m,), whether to look up each key.

    Returns:
        Index of each key, int64 (m,), or -1 if the key is missing or not valid.
    """
    if not len(keys):
        return np.full(len(queries), -1)
    indices = np.searchsorted(keys, queries)
    is_present = valid & (keys[np.minimum(indices, len(keys) - 1)] == queries)
    return np.where(is_present, indices, -1)
