"""From logits to probabilities, in numpy."""

from __future__ import annotations

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the logarithms of the probabilities over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities over the last axis."""
    return np.exp(log_softmax(logits))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Sigmoid, in the logits' shape."""
    return np.exp(-np.logaddexp(0, -logits))
