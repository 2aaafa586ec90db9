"""The scheme in which labels of words mark spans: BIO, IOBES, BILOU or BMES, as in named entity recognition."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

OUTSIDE = "O"
UNTYPED = "_"  # the type of spans whose labels are marks alone, as in seqeval
# What the mark of a label says of its word, in the letters of IOBES.
_MARKS = {"B": "B", "I": "I", "E": "E", "S": "S", "M": "I", "L": "E", "U": "S"}


@dataclass(frozen=True)
class _Spelling:
    """The way in which labels are written: the mark before or after the type, and what stands between them.

    Attributes:
        separator: between mark and type; "" for marks without a type.
        mark_first: whether the mark is before the type.
    """

    separator: str
    mark_first: bool = True

    def split(self, label: str) -> tuple[str, str] | None:
        """Return the letter and the type of a label, or None if it is not written in this way."""
        if not self.separator:
            return (label, UNTYPED) if label in _MARKS else None
        parts = label.split(self.separator, 1) if self.mark_first else label.rsplit(self.separator, 1)[::-1]
        return (parts[0], parts[1]) if len(parts) == 2 and parts[0] in _MARKS and parts[1] else None

    def join(self, letter: str, type_: str) -> str:
        """Return the label with a letter and a type."""
        if not self.separator and type_ == UNTYPED:
            return letter
        return self.separator.join([letter, type_] if self.mark_first else [type_, letter])


# If labels may be read in several ways, the earlier one is taken.
_SPELLINGS = (_Spelling("-"), _Spelling("_"), _Spelling("-", False), _Spelling("_", False), _Spelling(""))


@dataclass(frozen=True)
class SpanScheme:
    """How a set of labels marks spans.

    Attributes:
        marks: of each label in a span, its mark and its type. Marks are those of IOBES: "B" begins a span, "I"
            continues it, "E" ends it, and "S" is a span of one word. The type of labels that are marks alone is "_".
        others: labels that are neither in `marks` nor "O". Words with them are in no span.
        spelling: how the labels in `marks` are written.
    """

    marks: Mapping[str, tuple[str, str]]
    others: tuple[str, ...]
    spelling: _Spelling

    @classmethod
    def of(cls, labels: Collection[str] | None) -> Self | None:
        """Return the scheme in which most labels other than "O" mark spans, or None if there is none."""
        inside = [label for label in dict.fromkeys(labels or ()) if label != OUTSIDE]
        readings = [{label: parts for label in inside if (parts := way.split(label))} for way in _SPELLINGS]
        spelling, letters = max(zip(_SPELLINGS, readings, strict=True), key=lambda pair: len(pair[1]))
        few = 2 * len(letters) <= len(inside)
        if few or (not spelling.separator and letters.keys().isdisjoint("BI")):  # such as the sizes "S", "M" and "L"
            return None
        marks = {label: (_MARKS[letter], type_) for label, (letter, type_) in letters.items()}
        return cls(marks, tuple(label for label in inside if label not in marks), spelling)

    def split(self, label: str) -> tuple[str, str]:
        """Return the mark and the type of a label; "O" and "" if words with it are in no span."""
        return self.marks.get(label, (OUTSIDE, ""))

    def has(self, type_: str, mark: str) -> bool:
        """Return whether there is a label of a type with a mark."""
        return (mark, type_) in self.marks.values()

    def find(self, type_: str, *marks: str) -> str:
        """Return the label of a type with the first of `marks` that it has, or else with "B"."""
        labels = (label for mark in marks for label, parts in self.marks.items() if parts == (mark, type_))
        return next(labels, self.spelling.join("B", type_))


def marks_spans(labels: Collection[str] | None) -> bool:
    """Return whether labels mark spans in one of the schemes that `SpanScheme` reads."""
    return SpanScheme.of(labels) is not None


def with_marks(labels: Collection[str]) -> set[str]:
    """Return all combinations of the labels' marks and types: with "B-LOC" and "I-PER" also "I-LOC" and "B-PER"."""
    scheme = SpanScheme.of(labels)
    if scheme is None:
        return set(labels)
    pairs = [parts for label in scheme.marks if (parts := scheme.spelling.split(label))]
    return {*labels, *(scheme.spelling.join(letter, type_) for letter, _ in pairs for _, type_ in pairs)}
