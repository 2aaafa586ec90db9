"""The marks of spans in labels of words (B-, I-, E-, S- and O), as in named entity recognition."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

OUTSIDE = "O"
_MARKED = re.compile("([BIES])-(.+)", re.DOTALL)


def marks_spans(labels: Sequence[str] | None) -> bool:
    """Whether every label is "O" or a type of span after "B-", "I-", "E-" or "S-"."""
    return labels is not None and labels != [OUTSIDE] and all(x == OUTSIDE or _MARKED.fullmatch(x) for x in labels)


def split_label(label: str) -> tuple[str, str]:
    """The mark of a label ("B", "I", "E", "S" or "O") and its type, which is "" for "O"."""
    match = _MARKED.fullmatch(label)
    return (match[1], match[2]) if match else (OUTSIDE, "")


def with_marks(labels: Collection[str]) -> set[str]:
    """All combinations of the labels' marks and types: with "B-LOC" and "I-PER" also "I-LOC" and "B-PER"."""
    if not marks_spans(list(labels)):
        return set(labels)
    pairs = [split_label(label) for label in labels if label != OUTSIDE]
    return {*labels, *(f"{mark}-{type_}" for mark, _ in pairs for _, type_ in pairs)}
