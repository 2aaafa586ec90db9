"""Labeling schemes for spans of words, as in named entity recognition: BIO, IOBES, BILOU and BMES.

A label such as "B-PER" consists of a mark, "B", which gives the word's place in its span, and a type, "PER".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

OUTSIDE = "O"
_NO_TYPE = re.compile(r"\[.*\]|<.*>|X|\W+")  # labels of special tokens, and of a word's tokens after the first
UNTYPED = "_"  # type of spans whose labels are only marks, as in seqeval
# Marks of all schemes, and their equivalents in IOBES.
_MARKS = {"B": "B", "I": "I", "E": "E", "S": "S", "M": "I", "L": "E", "U": "S"}


@dataclass(frozen=True)
class _Spelling:
    """Order of mark and type in a label, and the separator between them.

    Attributes:
        separator: str, text between mark and type; "" for labels that are only marks.
        mark_first: bool, whether the mark precedes the type.
    """

    separator: str
    mark_first: bool = True

    def split(self, label: str) -> tuple[str, str] | None:
        """Return the mark and the type of a label, or None if the label has another spelling."""
        if not self.separator:
            return (label, UNTYPED) if label in _MARKS else None
        parts = label.split(self.separator, 1) if self.mark_first else label.rsplit(self.separator, 1)[::-1]
        return (parts[0], parts[1]) if len(parts) == 2 and parts[0] in _MARKS and parts[1] else None

    def join(self, mark: str, type_: str) -> str:
        """Return the label for a mark and a type."""
        if not self.separator and type_ == UNTYPED:
            return mark
        return self.separator.join([mark, type_] if self.mark_first else [type_, mark])


# In order of precedence, for ambiguous labels.
_SPELLINGS = (_Spelling("-"), _Spelling("_"), _Spelling("-", False), _Spelling("_", False), _Spelling(""))


@dataclass(frozen=True)
class SpanScheme:
    """The labeling scheme of a set of labels that mark spans.

    Attributes:
        marks: dict from a label to its mark in IOBES and its type. "B" begins a span, "I" continues it, "E" ends it,
            and "S" is a span of one word. Labels that are only marks have the type "_".
        others: labels that are neither in `marks` nor "O". Words with these labels are in no span.
        spelling: the spelling of the labels in `marks`.
    """

    marks: Mapping[str, tuple[str, str]]
    others: tuple[str, ...]
    spelling: _Spelling

    @classmethod
    def of(cls, labels: Collection[str] | None) -> Self | None:
        """Return the scheme of a set of labels, or None if they do not mark spans.

        The labels mark spans if more than half have a mark, not counting "O" and labels such as "[CLS]" and "X", or if
        a type has both a label that begins spans and a label that continues or ends spans, such as "B-PER" and "I-PER".
        Labels that are only marks must satisfy the first condition and include "B" or "I".
        """
        span_labels = [label for label in dict.fromkeys(labels or ()) if label != OUTSIDE]
        split_labels = [
            {label: parts for label in span_labels if (parts := candidate.split(label))} for candidate in _SPELLINGS
        ]
        spelling, parts_by_label = max(zip(_SPELLINGS, split_labels, strict=True), key=lambda pair: len(pair[1]))
        marks = {label: (_MARKS[letter], type_) for label, (letter, type_) in parts_by_label.items()}
        is_majority = 2 * len(marks) > sum(not _NO_TYPE.fullmatch(label) for label in span_labels)
        if spelling.separator:
            pairs = {*marks.values()}
            marks_whole_spans = any(("B", type_) in pairs and mark in "IE" for mark, type_ in pairs)
            has_scheme = is_majority or marks_whole_spans
        else:  # single letters may mean something else, such as the sizes "S", "M" and "L"
            has_scheme = is_majority and not marks.keys().isdisjoint("BI")
        if not has_scheme:
            return None
        return cls(marks, tuple(label for label in span_labels if label not in marks), spelling)

    def split(self, label: str) -> tuple[str, str]:
        """Return the mark in IOBES and the type of a label, or "O" and "" for labels outside of spans."""
        return self.marks.get(label, (OUTSIDE, ""))

    def has(self, type_: str, mark: str) -> bool:
        """Return whether the scheme has a label with this type and this mark."""
        return (mark, type_) in self.marks.values()

    def find(self, type_: str, *marks: str) -> str:
        """Return the label for `type_` with the first of `marks` that occurs with it, or with "B" if none does."""
        labels = (label for mark in marks for label, parts in self.marks.items() if parts == (mark, type_))
        return next(labels, self.spelling.join("B", type_))


def marks_spans(labels: Collection[str] | None) -> bool:
    """Return whether labels mark spans in one of the schemes that `SpanScheme` reads."""
    return SpanScheme.of(labels) is not None


def expand_marks(labels: Collection[str]) -> set[str]:
    """Return the labels and, if they mark spans, all combinations of their marks and types.

    For example, "B-LOC" and "I-PER" give two more labels, "I-LOC" and "B-PER".
    """
    scheme = SpanScheme.of(labels)
    if scheme is None:
        return set(labels)
    pairs = [parts for label in scheme.marks if (parts := scheme.spelling.split(label))]
    return {*labels, *(scheme.spelling.join(letter, type_) for letter, _ in pairs for _, type_ in pairs)}
