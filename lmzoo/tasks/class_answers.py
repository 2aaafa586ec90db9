"""Predicted classes with their probabilities, as classifiers return them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np


class ClassAnswer(TypedDict):
    """A predicted class with its probability."""

    label: str
    score: float


def rank_classes(
    probabilities: np.ndarray, names: Sequence[str], max_count: int | None = None
) -> list[list[ClassAnswer]]:
    """Return the classes of each example with their probabilities, the most probable first.

    Args:
        probabilities: float (n, C), the probabilities of C classes for n examples.
        names: names of the C classes.
        max_count: int, maximum number of classes for each example; None for all.
    """
    return [
        [{"label": names[i], "score": float(row[i])} for i in np.argsort(-row, kind="stable")[:max_count]]
        for row in probabilities
    ]
