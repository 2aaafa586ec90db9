"""From logits to answers, in numpy."""

from __future__ import annotations

import numbers

import numpy as np


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
    if not isinstance(top_k, numbers.Integral) or top_k < 1:
        raise ValueError(f"`top_k` must be a positive integer, got {top_k!r}.")
