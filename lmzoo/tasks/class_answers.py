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
    probabilities: np.ndarray, names: Sequence[str], max_count: int | None = None, threshold: float | None = None
) -> list[list[ClassAnswer]]:
    """Return the classes of each example with their probabilities, the most probable first.

    Args:
        probabilities: float (n, C), the probabilities of C classes for n examples.
        names: names of the C classes.
        max_count: int, maximum number of classes for each example; None for all.
        threshold: float, smallest probability of a returned class; None for all.
    """
    ranked_classes = []
    for row in probabilities:
        scores = row.astype("float64")  # so that the threshold is not rounded to float32
        order = np.argsort(-scores, kind="stable")[:max_count]
        if threshold is not None:
            order = order[scores[order] >= threshold]
        ranked_classes.append([ClassAnswer(label=names[i], score=float(scores[i])) for i in order])
    return ranked_classes
