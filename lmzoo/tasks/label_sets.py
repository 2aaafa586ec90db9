"""Conversion of multi-label targets, a set of classes for each example, to arrays of indicators."""

from __future__ import annotations

import numbers
from collections.abc import Sequence

import numpy as np

from lmzoo.tasks.base.examples import Labels
from lmzoo.tasks.base.labels import check_listed, encode_classes

# If there are at least this many examples and each label is [0, 1], the labels are taken for indicators, not for sets.
_MIN_FOR_INDICATORS = 100


def encode_label_sets(y: Labels, num_classes: int, labels: Sequence[str] | None) -> np.ndarray:
    """Convert sets of classes to indicators, float32 (n, C), 1 where an example has the class and 0 elsewhere.

    Args:
        y: for each of n examples, a list, tuple or set of class numbers or names, which may be empty; or an array
            (n, C) of zeros and ones.
        num_classes: int, number C of classes of the model.
        labels: names of the classes, or None.

    Raises:
        TypeError: If `y` is not a list or an array; or if an entry is not a collection of class numbers or names (the
            message names its position).
        ValueError: If the model lacks a class, or an example has a class twice (the message names the position); if an
            array has another shape or values other than 0 and 1; or, for a model with two classes, if the lists look
            like rows of zeros and ones.
    """
    y = y.to_list() if hasattr(y, "to_list") else y  # a ragged tensor, or a pandas Series
    check_listed(y)
    if getattr(y, "ndim", 1) == 2:
        y = np.asarray(y)
        if y.dtype.kind in "fiub":
            return _check_indicators(y, num_classes)
    example_positions = []
    classes = []
    for position, example_labels in enumerate(y):
        if isinstance(example_labels, (str, bytes)) or not hasattr(example_labels, "__len__"):
            raise TypeError(
                f"Label {example_labels!r:.60} at position {position} is not a collection: with `multi_label` an "
                "example has a list, tuple or set of classes."
            )
        for label in example_labels:
            if isinstance(label, bool) or not isinstance(label, (str, bytes, numbers.Integral)):
                raise TypeError(f"Label {label!r:.60} at position {position} is neither a class's name nor its number.")
        example_positions.extend([position] * len(example_labels))
        classes.extend(example_labels)
    class_numbers = encode_classes(classes, num_classes, labels, lambda k: f"at position {example_positions[k]}")
    label_counts = np.zeros((len(y), num_classes), "float32")
    np.add.at(label_counts, (np.array(example_positions, "int64"), class_numbers), 1)
    advice = "Rows of 0s and 1s, one for each class, are passed as an array."
    if repeated_positions := np.argwhere(label_counts > 1).tolist():
        raise ValueError(
            f"The labels at position {repeated_positions[0][0]} hold class {repeated_positions[0][1]} twice. ({advice})"
        )
    # Lists of 0 and 1 were probably meant as indicators if they occur in both orders or if there are many examples.
    looks_like_indicators = len(set(classes[::2])) > 1 or len(y) >= _MIN_FOR_INDICATORS
    if num_classes == 2 and looks_like_indicators and label_counts.all() and isinstance(classes[0], numbers.Integral):
        raise ValueError(f"All {len(y)} examples have both classes, 0 and 1. {advice}")
    return label_counts


def _check_indicators(indicators: np.ndarray, num_classes: int) -> np.ndarray:
    """Check that indicators are zeros and ones of shape (n, num_classes), and return them as float32."""
    if indicators.shape[1] != num_classes:
        raise ValueError(f"Expected 0s and 1s of shape (n, {num_classes}), got labels of shape {indicators.shape}.")
    for row, column in np.argwhere((indicators != 0) & (indicators != 1))[:1]:
        raise ValueError(f"Label {indicators[row, column]} at position {row} is neither 0 nor 1.")
    return indicators.astype("float32")
