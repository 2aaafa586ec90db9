"""Word labels that mark spans (B-, I-, E-, S- and O), as in named entity recognition."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from lmzoo.span_marks import OUTSIDE, marks_spans, split_label

# === Reading spans ===


def _continues(before: str, label: str) -> bool:
    """Whether a word with `label` belongs to the span of the word before it, labelled `before`.

    The rule is that of conlleval and of seqeval by default: a span continues until the type changes, "B-" or "S-"
    begins another one, or "E-" or "S-" has ended it.
    """
    (mark_before, type_before), (mark, type_) = split_label(before), split_label(label)
    return type_ == type_before and mark in ("I", "E") and mark_before in ("B", "I")


def spans_of(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """The spans that the labels of a text's words mark, as read by conlleval, and by seqeval by default.

    Returns:
        `(type, first, end)` for each span; it consists of the words `first` to `end - 1`.

    Example:

    ```python
    from lmzoo.text.span_labels import spans_of

    spans_of(["B-PER", "I-PER", "O", "I-LOC"])  # [("PER", 0, 2), ("LOC", 3, 4)]
    ```
    """
    spans: list[tuple[str, int, int]] = []
    for i, label in enumerate(labels):
        type_ = split_label(label)[1]
        if i and _continues(labels[i - 1], label):
            spans[-1] = (type_, spans[-1][1], i + 1)
        elif type_:
            spans.append((type_, i, i + 1))
    return spans


class SpanTable(NamedTuple):
    """The rules of `spans_of` for a list of labels, as arrays that ops of any backend can use.

    The arrays have an extra entry at index C for "no word", such as before the first word of a text.

    Attributes:
        types: names of the types of spans; "" is the type outside spans.
        type_of: int32 (C + 1,), index of each label's type.
        outside: bool (C + 1,), whether a word with this label is outside spans.
        continues: bool (C + 1, C + 1), whether a word with the column's label belongs to the span of the word before
            it, which has the row's label.
    """

    types: list[str]
    type_of: np.ndarray
    outside: np.ndarray
    continues: np.ndarray

    @classmethod
    def of(cls, labels: Sequence[str]) -> SpanTable:
        """The table of C labels; if they do not mark spans, every word is a span and its label the type."""
        marked, count = marks_spans(labels), len(labels)
        names = [*(split_label(label)[1] if marked else label for label in labels), ""]
        types = sorted(set(names))
        continues = np.zeros((count + 1, count + 1), bool)
        if marked:
            continues[:-1, :-1] = [[_continues(before, label) for label in labels] for before in labels]
        outside = np.array([*(marked and label == OUTSIDE for label in labels), True])
        return cls(types, np.array([types.index(name) for name in names], "int32"), outside, continues)


# === Writing spans ===


def labels_of_span(type_: str, length: int, labels: Collection[str]) -> list[str]:
    """The labels of a span of `length` words in the scheme of all `labels`: "B-PER", "I-PER", or "B-PER", "E-PER"."""

    def first_known(*marks: str) -> str:
        return next((label for mark in marks if (label := f"{mark}-{type_}") in labels), f"B-{type_}")

    if length == 1:
        return [first_known("S", "B", "I")]
    return [first_known("B", "I"), *[first_known("I")] * (length - 2), first_known("E", "I")]


def allowed_transitions(labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The labels that may follow each of the C labels in their scheme.

    "I-" and "E-" continue a span of their type that "B-" has begun; for a type without "B-" and "S-", they may also
    begin one. If there are labels with "E-", a span must end with one, or be an "S-".

    Returns:
        Bool arrays: (C, C), whether the column's label may follow the row's; (C,), whether a text may begin with a
        label; (C,), whether it may end with it.
    """
    continues = SpanTable.of(labels).continues[:-1, :-1]  # (C, C)
    split = [split_label(label) for label in labels]
    begun = {type_ for mark, type_ in split if mark in ("B", "S")}
    bound = np.array([mark in ("I", "E") and type_ in begun for mark, type_ in split])  # (C,), continues a span
    ended = any(mark == "E" for mark, _ in split)
    open_ = np.array([ended and mark in ("B", "I") for mark, _ in split])  # (C,), must be continued
    return np.where(bound | open_[:, None], continues, True), ~bound, ~open_


def transition_table(labels: Sequence[str]) -> np.ndarray:
    """The answers of `allowed_transitions` as one array.

    Returns:
        Bool (C + 1, C + 1): whether the column's label may follow the row's. The last row stands for the beginning of a
        text, the last column for its end.
    """
    transitions, at_start, at_end = allowed_transitions(labels)
    return np.block([[transitions, at_end[:, None]], [at_start[None], np.ones((1, 1), bool)]])


def best_path(scores: np.ndarray, transitions: np.ndarray, at_start: np.ndarray, at_end: np.ndarray) -> np.ndarray:
    """The sequence of labels, int (W,), with the highest sum of log probabilities (W, C) (Viterbi, 1967).

    The other arguments are those of `allowed_transitions`.
    """
    if not len(scores):
        return np.zeros(0, "int64")
    cost = np.where(transitions, 0.0, -np.inf)  # (C, C)
    best, back = np.where(at_start, scores[0], -np.inf), []
    for word in scores[1:]:
        step = best[:, None] + cost  # (C, C)
        back.append(step.argmax(axis=0))
        best = step.max(axis=0) + word
    path = [int(np.argmax(np.where(at_end, best, -np.inf)))]
    for pointers in reversed(back):
        path.append(int(pointers[path[-1]]))
    return np.array(path[::-1])
