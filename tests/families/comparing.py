"""Helpers of comparisons: the angle between vectors, and noise for the weights of peers."""

from __future__ import annotations

from typing import Any

import numpy as np


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the cosines between vectors of two arrays (..., H)."""
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def add_noise(peer: Any) -> None:
    """Add noise to the trainable parameters of a torch model.

    Parameters that are still 0 or 1, such as biases and scales, would hide mistakes.
    """
    import torch

    with torch.no_grad():
        for parameter in peer.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
