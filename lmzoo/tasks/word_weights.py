"""Weights of texts and words: reading sample weights, applying class weights, and batching."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lmzoo.tasks.base.examples import Batch, Examples, as_weights
from lmzoo.training.span_metrics import IGNORED


def read_weights(sample_weight: Any) -> tuple[np.ndarray | None, list[Any] | None]:
    """Interpret a `sample_weight` as weights of texts or as weights of words.

    Args:
        sample_weight: n numbers, one for each text; n lists or arrays, one number for each word; or None.

    Returns:
        `(text_weights, word_weights)`: text weights are float (n,), and word weights a list of n lists or arrays; at
        least one of the two is None.

    Raises:
        TypeError: If weights of texts are not numbers.
        ValueError: If weights of texts are NaN, infinite or negative, or not one number for each text.
    """
    if hasattr(sample_weight, "to_list"):  # a ragged tensor, or a pandas Series
        sample_weight = sample_weight.to_list()
    is_list = isinstance(sample_weight, (list, tuple)) or getattr(sample_weight, "ndim", 0) in (1, 2)
    if is_list and any(hasattr(row, "__len__") and not isinstance(row, (str, bytes)) for row in sample_weight):
        return None, list(sample_weight)
    weights = as_weights(sample_weight)
    if weights is not None and weights.ndim != 1:
        raise ValueError(
            f"Expected a weight for each text, or a list of the weights of its words, got weights of shape "
            f"{weights.shape}."
        )
    return weights, None


def join_weights(rows: Sequence[Any], counts: Sequence[int], unit: str) -> np.ndarray:
    """Check the weights of each text's words or tokens, and concatenate them into one float32 array.

    Args:
        rows: for each text, a list or an array with the weights of its words or tokens.
        counts: the number of words or tokens in each text.
        unit: "words" or "tokens", for messages.

    Raises:
        TypeError: If weights are not a list or not numbers; the message names their text.
        ValueError: If a weight is NaN, infinite or negative, or if a text does not have exactly one weight for each
            word or token; the message names the text.
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
    """Multiply the weights of examples by class weights, and return the examples with one weight per label.

    Args:
        examples: examples whose labels are int (n,), or int (T,) for each text, -100 for tokens that do not count.
        class_weight: dict from each class number to the weight of the class.
    """
    if examples.labels.dtype != object:
        return examples._replace(weights=weigh_labels(examples.labels, examples.weights, class_weight))
    weights = np.empty(len(examples.labels), object)
    for i, labels in enumerate(examples.labels):
        sample_weight = 1.0 if examples.weights is None else examples.weights[i]
        weights[i] = get_class_weights(labels, class_weight) * sample_weight
    return examples._replace(weights=weights)


def weigh_generator(batches: Any, class_weight: Mapping[int, float] | None) -> tuple[Any, Mapping[int, float] | None]:
    """Return `x` and `class_weight` for Keras; if `batches` is a generator, apply the class weights to its batches.

    In that case, the returned `class_weight` is None, since Keras takes no class weights with a generator.
    """
    if class_weight is None or not isinstance(batches, Generator):
        return batches, class_weight
    return _weigh_batches(batches, class_weight), None


def _weigh_batches(batches: Iterable[Any], class_weight: Mapping[int, float]) -> Iterator[Batch]:
    """Yield batches whose weights are multiplied by the class weights of the labels; each example has one label."""
    for features, labels, *weights in batches:
        class_weights = get_class_weights(labels, class_weight)
        yield features, labels, class_weights * weights[0] if weights else class_weights


def weigh_labels(y: np.ndarray, weights: Any, class_weight: Mapping[int, float]) -> np.ndarray:
    """Return the class weights of labels, float (n,) or (n, T), multiplied by sample weights if there are any.

    Args:
        y: int (n,), labels of n texts, or (n, T), labels of their T tokens.
        weights: sample weights of the texts, (n,), or of the tokens, (n, T); or None.
        class_weight: dict from each class number to the weight of the class.
    """
    class_weights = get_class_weights(y, class_weight)  # (n,) or (n, T)
    if weights is None:
        return class_weights
    sample_weights = np.asarray(weights)  # (n,) or (n, T)
    return class_weights * (sample_weights if sample_weights.ndim == y.ndim else sample_weights[:, None])


def get_class_weights(labels: np.ndarray, class_weight: Mapping[int, float]) -> np.ndarray:
    """Return each label's class weight, float32 with the shape of `labels`; 0 for the label -100."""
    weights_by_class = np.array(
        [class_weight[class_number] for class_number in range(len(class_weight))], "float32"
    )  # (C,)
    return np.where(labels == IGNORED, np.float32(0), weights_by_class[np.maximum(labels, 0)])


def make_batch_weights(weights: np.ndarray, indices: np.ndarray, width: int) -> np.ndarray:
    """Return the token weights of a batch, (b, width).

    Args:
        weights: weights of n texts, float (n,), or an object array of the token weights of each of n texts.
        indices: int (b,), indices of the texts in the batch.
        width: int, padded length.
    """
    if weights.dtype != object:
        return np.repeat(weights[indices, None], width, axis=1)
    batch_weights = np.zeros((len(indices), width), "float32")
    for row, text_index in zip(batch_weights, indices, strict=True):
        row[: len(weights[text_index])] = weights[text_index]
    return batch_weights
