"""From logits to answers, in numpy."""

from __future__ import annotations

import numpy as np

from lmzoo.arguments import is_integer, require


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Sigmoid, in the logits' shape."""
    return np.exp(-np.logaddexp(0, -logits))


def check_top_k(top_k: int) -> None:
    """Checks a number of answers to return.

    Raises:
        ValueError: if it is not a positive integer.
    """
    require(is_integer(top_k, 1), "top_k", "a positive integer", top_k)
