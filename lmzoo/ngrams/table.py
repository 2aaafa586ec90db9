"""Probabilities of n-grams in sorted arrays, and what a backoff model says about tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# The first tokens of every vocabulary.
UNKNOWN, START, END = 0, 1, 2

NEVER = -99.0  # base-10 logarithm of the probability of `START`, as in files


@dataclass(frozen=True)
class NgramTable:
    """The n-grams of a backoff model, as a trie: an n-gram's parent is what it is without its last token.

    The n-grams of an order are numbered in the order of their keys. The key of an n-gram is its parent's number times
    the size of the vocabulary, plus its last token. So the children of an n-gram are adjacent, and a binary search
    finds one of them. Unigrams have no parent; their numbers are their tokens.

    A token that was seen after its context has the probability of that n-gram. Otherwise it has its probability after
    the context without its first token, times the backoff weight of the context; contexts that are not in the table
    have weight 1.

    Attributes:
        keys: for each order from 1, int64 (N,), rising.
        log10: for each order, float32 (N,), base-10 logarithms of probabilities.
        backoff: for each order but the highest, float32 (N,), base-10 logarithms of backoff weights.
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
        """Return numbers of n-grams: int64 (n,), -1 for those that are not in the table.

        Args:
            order: their length, at least 2.
            parents: integers (n,), the numbers of their parents, -1 for none.
            tokens: integers (n,), their last tokens.
        """
        return find_keys(self.keys[order - 1], parents.astype("int64") * self.vocabulary_size + tokens, parents >= 0)

    def log_probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """Return the natural logarithms of the probability of each token after those before it: float64 (T,).

        Args:
            tokens: integers (T,). `START` begins a sentence, and what precedes it is not seen after it. Its own
                probability means nothing.
        """
        numbers = tokens.astype("int64")  # (T,), of the n-gram that ends with each token
        found = self.log10[0][numbers].astype("float64")  # (T,)
        for order in range(2, self.order + 1):
            parents = np.concatenate([[-1], numbers[:-1]])  # (T,)
            numbers = self.find(order, parents, tokens)
            weights = _at(self.backoff[order - 2], parents)
            found = np.where(numbers >= 0, _at(self.log10[order - 1], numbers), found + weights)
        return found * math.log(10)

    def next_token(self, context: Sequence[int]) -> np.ndarray:
        """Return the natural logarithms of the probability of every token after a context: float64 (V,)."""
        found = self.log10[0].astype("float64")  # (V,)
        for order in range(1, min(self.order, len(context) + 1)):
            number = self._number(context[-order:])
            if number >= 0:
                start = number * self.vocabulary_size
                first, last = np.searchsorted(self.keys[order], [start, start + self.vocabulary_size])
                found += self.backoff[order - 1][number]
                found[self.keys[order][first:last] - start] = self.log10[order][first:last]
        return found * math.log(10)

    def _number(self, tokens: Sequence[int]) -> int:
        """Return the number of an n-gram, or -1."""
        number = np.array(tokens[:1])
        for order, token in enumerate(tokens[1:], 2):
            number = self.find(order, number, np.array([token]))
        return int(number[0])


def _at(values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the values of n-grams, 0 for the number -1; an order may have none, if all sentences are shorter."""
    found = np.zeros(len(numbers), values.dtype)
    there = numbers >= 0
    found[there] = values[numbers[there]]
    return found


def find_keys(keys: np.ndarray, wanted: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Return the places of wanted keys among sorted ones: int64 (n,), -1 for keys that are missing or not valid."""
    if not len(keys):
        return np.full(len(wanted), -1)
    places = np.searchsorted(keys, wanted)
    there = valid & (keys[np.minimum(places, len(keys) - 1)] == wanted)
    return np.where(there, places, -1)
