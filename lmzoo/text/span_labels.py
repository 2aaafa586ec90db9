"""Labels of words that mark spans: B-, I-, E-, S- and O, as in named entity recognition."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np

OUTSIDE = "O"
_MARKED = re.compile("([BIES])-(.+)", re.DOTALL)


def marks_spans(labels: Sequence[str] | None) -> bool:
    """Whether all labels are "O", or a type of span after "B-", "I-", "E-" or "S-"."""
    return labels is not None and labels != [OUTSIDE] and all(x == OUTSIDE or _MARKED.fullmatch(x) for x in labels)


def split_label(label: str) -> tuple[str, str]:
    """The mark of a label ("B", "I", "E", "S" or "O") and its type; "" is the type of "O"."""
    match = _MARKED.fullmatch(label)
    return (match[1], match[2]) if match else (OUTSIDE, "")


def with_marks(labels: Collection[str]) -> set[str]:
    """Labels of spans with every mark that one of them has: where there is "B-LOC", there may be "I-LOC", too."""
    if not marks_spans(list(labels)):
        return set(labels)
    pairs = [split_label(label) for label in labels if label != OUTSIDE]
    return {*labels, *(f"{mark}-{type_}" for mark, _ in pairs for _, type_ in pairs)}


def spans_of(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """The spans that the labels of a text's words mark.

    The rule is that of conlleval, which is seqeval's by default: a span of any marks goes on until the type changes,
    "B-" or "S-" begins another one, or "E-" or "S-" has ended it.

    Args:
        labels: one for each word.

    Returns:
        `(type, first, end)` for each span, of the words `first` to `end - 1`.

    Example:

    ```python
    from lmzoo.text.span_labels import spans_of

    spans_of(["B-PER", "I-PER", "O", "I-LOC"])  # [("PER", 0, 2), ("LOC", 3, 4)]
    ```
    """
    spans: list[tuple[str, int, int]] = []
    for i, label in enumerate(labels):
        mark, type_ = split_label(label)
        if i and _continues(labels[i - 1], label):
            spans[-1] = (type_, spans[-1][1], i + 1)
        elif mark != OUTSIDE:
            spans.append((type_, i, i + 1))
    return spans


def _continues(before: str, label: str) -> bool:
    """Whether a word with `label` belongs to the span of the word before, labelled `before`."""
    (mark_before, type_before), (mark, type_) = split_label(before), split_label(label)
    return type_ == type_before and mark in ("I", "E") and mark_before in ("B", "I")


def allowed_transitions(labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which labels may follow which, in the scheme that the labels themselves show.

    "I-" and "E-" go on with a span of their type, which "B-" has begun; of a type that has neither "B-" nor "S-", they
    begin one, too. If there are labels with "E-", a span must end with one, or be an "S-".

    Args:
        labels: names of all C classes.

    Returns:
        Bool arrays: (C, C), from the row's label to the column's; (C,) at the start; (C,) at the end of a text.
    """
    split = [split_label(label) for label in labels]
    ended = any(mark == "E" for mark, _ in split)
    begun = {type_ for mark, type_ in split if mark in ("B", "S")}
    inside = np.array([mark in ("I", "E") for mark, _ in split])
    bound = inside & np.array([type_ in begun for _, type_ in split])  # needs a span to go on with
    open_ = np.array([mark in ("B", "I") for mark, _ in split])
    types = np.array([type_ for _, type_ in split])
    same = types[:, None] == types
    after = np.where(bound, open_[:, None] & same, True)  # (C, C)
    if ended:  # an open span has to go on
        after &= np.where(open_[:, None], inside & same, True)
    return after, ~bound, ~open_ if ended else np.ones(len(split), bool)


def best_path(scores: np.ndarray, transitions: np.ndarray, at_start: np.ndarray, at_end: np.ndarray) -> np.ndarray:
    """The labels of the highest sum of scores among those that follow each other as allowed (Viterbi, 1967).

    Args:
        scores: float (W, C), logarithms of probabilities of the words' labels.
        transitions: bool (C, C), see `allowed_transitions`.
        at_start: bool (C,).
        at_end: bool (C,).

    Returns:
        Int array (W,).
    """
    if not len(scores):
        return np.zeros(0, "int64")
    cost = np.where(transitions, 0.0, -np.inf)  # (C, C)
    best, back = np.where(at_start, scores[0], -np.inf), []
    for row in scores[1:]:
        step = best[:, None] + cost  # (C, C)
        back.append(step.argmax(axis=0))
        best = step.max(axis=0) + row
    path = [int(np.argmax(np.where(at_end, best, -np.inf)))]
    for pointers in reversed(back):
        path.append(int(pointers[path[-1]]))
    return np.array(path[::-1])
