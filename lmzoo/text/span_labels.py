"""Word labels that mark spans, as in named entity recognition: reading, writing and decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lmzoo.common.span_marks import OUTSIDE, SpanScheme

# === Reading spans ===


def _continues(previous_word: tuple[str, str], word: tuple[str, str]) -> bool:
    """Return whether a word belongs to the span of the previous word, given the mark and the type of both words.

    The rule is conlleval's, and seqeval's default: a span continues until the type changes, "B" or "S" begins another
    span, or "E" or "S" has ended the span.
    """
    previous_mark, previous_type = previous_word
    mark, type_ = word
    return type_ == previous_type and mark in ("I", "E") and previous_mark in ("B", "I")


def find_marked_spans(labels: Sequence[str], scheme: SpanScheme | None = None) -> list[tuple[str, int, int]]:
    """Return the spans that word labels mark, by the rules of conlleval and of seqeval's default mode.

    Args:
        labels: strings, the labels of the words of a text.
        scheme: `SpanScheme` of all labels that a word may have; by default the scheme of `labels`.

    Returns:
        A tuple `(type, first, end)` for each span, which consists of the words `first` to `end - 1`. The list is empty
        if there is no scheme in which the labels mark spans.

    Example:

    ```python
    from lmzoo.text.span_labels import find_marked_spans

    find_marked_spans(["B-PER", "I-PER", "O", "I-LOC"])  # [("PER", 0, 2), ("LOC", 3, 4)]
    find_marked_spans(["PER_B", "PER_L", "O", "LOC_U"])  # [("PER", 0, 2), ("LOC", 3, 4)]
    ```
    """
    scheme = scheme or SpanScheme.of(labels)
    if scheme is None:
        return []
    marks_and_types = [scheme.split(label) for label in labels]
    spans: list[tuple[str, int, int]] = []
    for i, (_, type_) in enumerate(marks_and_types):
        if i and _continues(marks_and_types[i - 1], marks_and_types[i]):
            spans[-1] = (type_, spans[-1][1], i + 1)
        elif type_:
            spans.append((type_, i, i + 1))
    return spans


class SpanTable(NamedTuple):
    """The rules of `find_marked_spans` as lookup arrays, for ops of any backend.

    For C labels, the arrays have an extra entry at index C for "no word", such as before the first word of a text.

    Attributes:
        types: list of strings, names of the span types; "" is the type outside spans.
        type_of: int32 (C + 1,), index of each label's type.
        outside: bool (C + 1,), whether a word with this label is outside spans.
        continues: bool (C + 1, C + 1), whether a word with the label of the column continues the span of a previous
            word with the label of the row.
    """

    types: list[str]
    type_of: np.ndarray
    outside: np.ndarray
    continues: np.ndarray

    @classmethod
    def of(cls, labels: Sequence[str]) -> SpanTable:
        """Build the table for C labels; if they do not mark spans, every word is a span whose type is its label."""
        scheme = SpanScheme.of(labels)
        num_labels = len(labels)
        marks_and_types = [scheme.split(label) if scheme else ("", label) for label in labels]
        label_types = [*(type_ for _, type_ in marks_and_types), ""]
        types = sorted(set(label_types))
        continues = np.zeros((num_labels + 1, num_labels + 1), bool)
        continues[:-1, :-1] = [
            [_continues(previous_word, word) for word in marks_and_types] for previous_word in marks_and_types
        ]
        is_outside = np.array([*(scheme is not None and not type_ for _, type_ in marks_and_types), True])
        return cls(types, np.array([types.index(name) for name in label_types], "int32"), is_outside, continues)


# === Writing spans ===


def label_span(type_: str, length: int, scheme: SpanScheme) -> list[str]:
    """Return the labels of a span of `length` words in a scheme, such as ["B-PER", "I-PER"] or ["B-PER", "E-PER"].

    Raises:
        ValueError: If `length` is above 2 and the scheme has "B" and "E" but no "I" for the type.
    """
    if length > 2 and not scheme.has(type_, "I") and scheme.has(type_, "B") and scheme.has(type_, "E"):
        raise ValueError(
            f"A span of {length} words of the type {type_!r} needs a label for the words inside of it, such as "
            f"{scheme.spelling.join('I', type_)!r}, which `labels` does not have."
        )
    if length == 1:
        return [scheme.find(type_, "S", "B", "E", "I")]
    return [scheme.find(type_, "B", "I"), *[scheme.find(type_, "I")] * (length - 2), scheme.find(type_, "E", "I")]


def allowed_transitions(labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the label transitions that the span scheme of C labels allows.

    "I" and "E" continue a span of their type that "B" has begun; for a type with neither "B" nor "S", they may also
    begin a span. If there are only "B" and "I", a type with "I" but without "B" means that the scheme is IOB1, in which
    "I" of any type may begin a span. If there are labels with "E", a span must end with "E" or consist of an "S". Marks
    are defined in `SpanScheme.marks`.

    Returns:
        Three bool arrays: whether the label of the column may follow the label of the row, (C, C); whether a text may
        begin with each label, (C,); and whether a text may end with each label, (C,).
    """
    scheme = SpanScheme.of(labels)
    continues = SpanTable.of(labels).continues[:-1, :-1]  # (C, C)
    marks_and_types = [scheme.split(label) if scheme else (OUTSIDE, "") for label in labels]
    types_with_start = {type_ for mark, type_ in marks_and_types if mark in ("B", "S")}
    types_inside = {type_ for mark, type_ in marks_and_types if mark == "I"}
    marks = {mark for mark, _ in marks_and_types}
    if marks.isdisjoint({"E", "S"}) and not types_inside <= types_with_start:  # IOB1
        types_with_start = set()
    is_continuation = [mark in ("I", "E") and type_ in types_with_start for mark, type_ in marks_and_types]
    must_continue = np.array(is_continuation)  # (C,)
    must_be_continued = np.array(["E" in marks and mark in ("B", "I") for mark, _ in marks_and_types])  # (C,)
    may_follow = np.where(must_continue | must_be_continued[:, None], continues, True)  # (C, C)
    return may_follow, ~must_continue, ~must_be_continued


def transition_table(labels: Sequence[str]) -> np.ndarray:
    """Return `allowed_transitions` as a single array.

    Returns:
        bool (C + 1, C + 1), whether the label of the column may follow the label of the row. The last row stands for
        the beginning of a text, the last column for its end.
    """
    transitions, at_start, at_end = allowed_transitions(labels)
    return np.block([[transitions, at_end[:, None]], [at_start[None], np.ones((1, 1), bool)]])


def best_path(scores: np.ndarray, transitions: np.ndarray, at_start: np.ndarray, at_end: np.ndarray) -> np.ndarray:
    """Return the allowed label sequence with the highest sum of log probabilities (Viterbi, 1967): int (W,).

    Args:
        scores: float (W, C), log probabilities of C labels for each of W words.
        transitions: bool (C, C), whether the label of the column may follow the label of the row; see
            `allowed_transitions`.
        at_start: bool (C,), whether a text may begin with each label.
        at_end: bool (C,), whether a text may end with each label.
    """
    if not len(scores):
        return np.zeros(0, "int64")
    transition_scores = np.where(transitions, 0.0, -np.inf)  # (C, C)
    best_scores = np.where(at_start, scores[0], -np.inf)  # (C,)
    back_pointers = []
    for word_scores in scores[1:]:
        step_scores = best_scores[:, None] + transition_scores  # (C, C)
        back_pointers.append(step_scores.argmax(axis=0))
        best_scores = step_scores.max(axis=0) + word_scores
    path = [int(np.argmax(np.where(at_end, best_scores, -np.inf)))]
    for pointers in reversed(back_pointers):
        path.append(int(pointers[path[-1]]))
    return np.array(path[::-1])
