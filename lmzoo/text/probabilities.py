"""Softmax and sigmoid of logits in numpy."""

from __future__ import annotations

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the log probabilities over the last axis, in the shape of `logits`."""
    shifted_logits = logits - logits.max(axis=-1, keepdims=True)
    return shifted_logits - np.log(np.exp(shifted_logits).sum(axis=-1, keepdims=True))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities over the last axis, in the shape of `logits`."""
    return np.exp(log_softmax(logits))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the sigmoid of each logit, in the shape of `logits`."""
    return np.exp(-np.logaddexp(0, -logits))
