"""Weights of words: as users pass them, by the classes of the words, and in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lmzoo.tasks.base.examples import Examples, as_weights
from lmzoo.training.span_metrics import IGNORED


def read_weights(sample_weight: Any) -> tuple[np.ndarray | None, list[Any] | None]:
    """Return the weights of texts as float (n,), and those of their words as n lists or arrays; one of them is None.

    Raises:
        TypeError: if weights of texts are not numbers.
        ValueError: for weights of texts that are NaN, infinite or negative, or not one for each text.
    """
    if hasattr(sample_weight, "to_list"):  # a ragged tensor, or a series of pandas
        sample_weight = sample_weight.to_list()
    listed = isinstance(sample_weight, (list, tuple)) or getattr(sample_weight, "ndim", 0) in (1, 2)
    if listed and any(hasattr(row, "__len__") and not isinstance(row, (str, bytes)) for row in sample_weight):
        return None, list(sample_weight)
    weights = as_weights(sample_weight)
    if weights is not None and weights.ndim != 1:
        raise ValueError(
            f"Expected a weight for each text, or a list of the weights of its words, got weights of shape "
            f"{weights.shape}."
        )
    return weights, None


def join_weights(rows: Sequence[Any], counts: Sequence[int], unit: str) -> np.ndarray:
    """Return the weights of all words, or other units, of n texts, float32 (sum of `counts`,), each checked.

    Args:
        rows: the weights of each text, as `read_weights` returns them.
        counts: words of each text.
        unit: "words" or "tokens", for messages.

    Raises:
        TypeError: naming the position of weights that are not numbers.
        ValueError: naming the position of weights that are NaN, infinite or negative, or not one for each word.
    """
    weights = [np.zeros(0, "float32")]
    for i, (row, count) in enumerate(zip(rows, counts, strict=True)):
        if not hasattr(row, "__len__") or isinstance(row, (str, bytes)):
            raise TypeError(f"`sample_weight[{i}]` must be a list of the weights of {count} {unit}, got {row!r:.60}.")
        if len(row) != count:
            raise ValueError(f"`sample_weight[{i}]` holds {len(row)} weights for {count} {unit}.")
        try:
            weights.append(np.asarray(as_weights(list(row)), "float32"))
        except (TypeError, ValueError) as error:
            raise type(error)(f"Text {i}: {error}") from None
    return np.concatenate(weights)


def weigh_classes(examples: Examples, class_weight: Mapping[int, float]) -> Examples:
    """Return examples whose words are weighed by their classes, in addition to the weights that they have.

    Args:
        examples: their labels are those of the tokens of each text, int (T,), -100 where none counts.
        class_weight: the weights of all classes by number.
    """
    weights = np.empty(len(examples.labels), object)
    for i, labels in enumerate(examples.labels):
        given = 1.0 if examples.weights is None else examples.weights[i]
        weights[i] = weights_of_classes(labels, class_weight) * given
    return examples._replace(weights=weights)


def weigh_labels(y: np.ndarray, weights: Any, class_weight: Mapping[int, float]) -> np.ndarray:
    """Return the weights of labels of tokens, (n, T), by their classes and by the weights that they have."""
    of_classes = weights_of_classes(y, class_weight)  # (n, T)
    if weights is None:
        return of_classes
    given = np.asarray(weights)  # (n,) or (n, T)
    return of_classes * (given if given.ndim == 2 else given[:, None])


def weights_of_classes(labels: np.ndarray, class_weight: Mapping[int, float]) -> np.ndarray:
    """Return the weight of the class of each label, float32 like `labels`; 0 for labels that do not count."""
    table = np.array([class_weight[number] for number in range(len(class_weight))], "float32")  # (C,)
    return np.where(labels == IGNORED, np.float32(0), table[np.maximum(labels, 0)])


def weights_in_batch(weights: np.ndarray, indices: np.ndarray, width: int) -> np.ndarray:
    """Return the weights of texts (n,), or of the tokens of n texts, as those of a batch's tokens, (b, t)."""
    if weights.dtype != object:
        return np.repeat(weights[indices, None], width, axis=1)
    result = np.zeros((len(indices), width), "float32")
    for row, index in zip(result, indices, strict=True):
        row[: len(weights[index])] = weights[index]
    return result
