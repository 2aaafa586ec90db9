"""Conversion of users' labels to arrays: classes, given by name or by number, and regression targets."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from lmzoo.common.arguments import is_integer
from lmzoo.tasks.base.examples import Labels


def check_classes(
    num_classes: int | None, labels: Sequence[str] | None, preprocessor: object = None
) -> tuple[int, list[str] | None]:
    """Check `num_classes` and `labels`, either of which may be None, and return both.

    A missing `num_classes` is derived from `labels`; missing `labels` stay None.

    Raises:
        TypeError: If `labels` is unordered or holds anything but strings, or if `preprocessor` is an integer, which was
            probably meant as the number of classes.
        ValueError: If a name is repeated, `num_classes` is not the number of `labels`, or there are fewer than two
            classes.
    """
    if is_integer(preprocessor):
        raise TypeError(
            f"`preprocessor` must be a `lmzoo.text.Preprocessor`, got {preprocessor}. Pass the number of classes by "
            f"name: `num_classes={preprocessor}`."
        )
    if labels is not None and not _is_listed(labels):
        raise TypeError(f"`labels` must be a list, whose order numbers the classes; got {labels!r:.60}.")
    if labels is not None:
        if invalid_labels := [label for label in labels if not isinstance(label, str)]:
            raise TypeError(f"`labels` are the names of the classes, strings; got {invalid_labels[0]!r}.")
        labels = [str(label) for label in labels]
        if len(set(labels)) != len(labels):
            raise ValueError(f"`labels` holds a name twice: {labels}.")
        num_classes = len(labels) if num_classes is None else num_classes
        if num_classes != len(labels):
            raise ValueError(f"`num_classes` is {num_classes}, but `labels` names {len(labels)} classes.")
    if num_classes is None or not is_integer(num_classes, 2):
        raise ValueError(f"Pass `num_classes` (an integer of at least 2) or `labels`; got num_classes={num_classes!r}.")
    return int(num_classes), labels


def check_listed(y: Any) -> None:
    """Check that labels are in an ordered collection.

    Raises:
        TypeError: If `y` is a string, a dict, a set or not a collection.
    """
    if not _is_listed(y):
        raise TypeError(f"`y` must be a list or an array with a label for each example, got {y!r:.60}.")


def as_labels(y: Labels, expected: str) -> np.ndarray:
    """Convert labels to an array, without checking its shape or values.

    Args:
        y: the labels.
        expected: description of valid labels, for the message.

    Raises:
        TypeError: If `y` is not a list or an array.
        ValueError: If lists in `y` differ in length.
    """
    check_listed(y)
    try:
        return np.asarray(y)
    except ValueError:
        raise ValueError(f"Expected {expected}, got lists of different lengths: {y!r:.60}.") from None


def _is_listed(values: Any) -> bool:
    """Return whether `values` is an ordered collection, such as a list or an array."""
    is_unordered = isinstance(values, (str, bytes, Mapping, Set))
    return not is_unordered and hasattr(values, "__len__") and getattr(values, "ndim", 1) != 0


def squeeze_labels(y: Labels, expected: str) -> np.ndarray:
    """Convert labels, one per example, to an array with one axis.

    Args:
        y: the labels of n examples, with shape (n,) or (n, 1).
        expected: description of valid labels, for messages.

    Raises:
        TypeError: If `y` is not a list or an array.
        ValueError: If the labels have another shape.
    """
    labels = as_labels(y, expected)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(f"Expected {expected}, got labels of shape {labels.shape}.")
    return labels


def refuse_first(
    wrong: np.ndarray, labels: np.ndarray, problem: str, place: Callable[[int], str] = "at position {}".format
) -> None:
    """Raise a ValueError that names the first wrong label and its position, if any label is wrong.

    Args:
        wrong: bool (n,), whether each label is wrong.
        labels: array (n,), the labels.
        problem: rest of the message after "Label 7 at position 3", such as "is not a finite number."
        place: function from the index of a label to the words for its position, such as "at position 3".

    Raises:
        ValueError: If any label is wrong.
    """
    if wrong.any():
        first_wrong_index = int(wrong.argmax())
        raise ValueError(f"Label {labels[first_wrong_index]!s} {place(first_wrong_index)} {problem}")


def encode_classes(
    y: Labels, num_classes: int, labels: Sequence[str] | None, place: Callable[[int], str] = "at position {}".format
) -> np.ndarray:
    """Check classes that are given by number or by name, and return the class numbers, int32 (n,).

    Args:
        y: the classes of n examples.
        num_classes: int, number of classes of the model.
        labels: names of the classes, or None.
        place: function from an index in `y` to the words for this position in a message, such as "at position 3".

    Raises:
        TypeError: If `y` is not a list or an array, an entry is neither a number nor a string, or only some entries are
            strings.
        ValueError: If `y` does not have one class per example, an entry is not a class of the model, or a number is
            also another class's name; the message names the first such entry.
    """
    classes = squeeze_labels(y, "one class for each text")
    holds_numbers = classes.dtype.kind == "O" and all(isinstance(label, numbers.Real) for label in classes)
    if classes.dtype.kind in "USOT" and not holds_numbers:
        return _encode_names(classes, labels, place)
    if holds_numbers and not all(isinstance(label, numbers.Integral) for label in classes):
        classes = classes.astype("float64")  # whole numbers stay objects, since they may be beyond int64
    if not holds_numbers and classes.dtype.kind not in "iubf":
        raise ValueError(f"Labels must be whole numbers or strings, got {classes.dtype}.")
    # NaN is not equal to anything, so it is also invalid.
    if classes.dtype.kind == "f" and len(invalid_positions := np.flatnonzero(~(classes == np.round(classes)))):
        position = int(invalid_positions[0])
        hint = " A label is missing there." if np.isnan(classes[position]) else ""
        raise ValueError(f"Labels must be whole numbers or strings, got {classes[position]} {place(position)}.{hint}")
    problem = (
        f"is outside [0, {num_classes}), the classes of this model. Build it with a larger `num_classes`, or number "
        "the labels from 0."
    )
    refuse_first((classes < 0) | (classes >= num_classes), classes, problem, place)
    if labels is not None:
        _refuse_ambiguous(classes, labels, place)
    return classes.astype("int32")


def _refuse_ambiguous(classes: np.ndarray, labels: Sequence[str], place: Callable[[int], str]) -> None:
    """Raise a ValueError if a class number is also another class's name, such as 0 for the classes "1" and "0"."""
    names = set(labels)
    class_numbers = classes.astype("int32")

    def is_ambiguous(number: int) -> bool:
        numerals = {str(number), str(bool(number))} if classes.dtype == "bool" else {str(number)}
        return not names.isdisjoint(numerals - {labels[number]})

    ambiguous_numbers = [number for number in np.unique(class_numbers).tolist() if is_ambiguous(number)]
    problem = "is the number of one class and the name of another: pass the names of the classes, as strings."
    refuse_first(np.isin(class_numbers, ambiguous_numbers), classes, problem, place)


def encode_numbers(y: Labels) -> np.ndarray:
    """Check that labels are finite numbers, and return them as float32 (n,).

    Raises:
        TypeError: If `y` is not a list or an array, or a label is not a number; the message names the first such label.
        ValueError: If a label is not finite (the message names the first), or there are several numbers per text.
    """
    label_array = squeeze_labels(y, "one number for each text")
    if label_array.dtype.kind not in "fiub":
        for position, label in enumerate(y):
            if not isinstance(label, numbers.Real):
                raise TypeError(f"Label {label!r:.60} at position {position} is not a number.")
    with np.errstate(over="ignore"):
        label_array = label_array.astype("float32")
    refuse_first(~np.isfinite(label_array), label_array, "is not a finite number.")
    return label_array


def encode_exact_numbers(y: Labels) -> np.ndarray:
    """Check that labels are finite in float32, as `fit` requires, but return them as float64 (n,), without rounding."""
    encode_numbers(y)
    return squeeze_labels(y, "one number for each text").astype("float64")


def _encode_names(label_array: np.ndarray, labels: Sequence[str] | None, place: Callable[[int], str]) -> np.ndarray:
    """Return the numbers, int32 (n,), of classes given by name; see `encode_classes` for `labels` and `place`."""
    entries = [entry.decode(errors="replace") if isinstance(entry, bytes) else entry for entry in label_array.tolist()]
    are_strings = [isinstance(entry, str) for entry in entries]
    if not any(are_strings):
        position = next((i for i, label in enumerate(entries) if not isinstance(label, numbers.Real)), 0)
        raise TypeError(
            f"Label {entries[position]!r:.60} {place(position)} is neither a class's number nor its name: leave out "
            "examples without a label."
        )
    if not all(are_strings):
        position = are_strings.index(False)
        raise TypeError(f"Label {entries[position]!r:.60} {place(position)} is not a string, but others are.")
    if labels is None:
        raise ValueError(
            f"Got string labels such as {entries[0]!r}, but this model's classes have no names. Pass "
            f"`labels=[...]` when building it, for example labels={sorted(set(map(str, entries)))[:5]}."
        )
    numbers_by_name = {label: i for i, label in enumerate(labels)}
    for position, entry in enumerate(entries):
        if entry not in numbers_by_name:
            raise ValueError(f"Label {entry!r} {place(position)} is not one of {list(labels)}.")
    return np.array([numbers_by_name[entry] for entry in entries], "int32")
