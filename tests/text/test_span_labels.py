"""Spans that labels mark, compared with a plain reading of conlleval's rules, and well-formed paths with all paths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lmzoo.common.span_marks import SpanScheme
from lmzoo.text.span_labels import SpanTable, allowed_transitions, best_path, find_marked_spans, label_span

LABELS = ["O", *(f"{mark}-{type_}" for mark in "BIES" for type_ in ("PER", "LOC"))]


def conlleval(labels):
    """Return the chunks that the script of CoNLL-2000 counts, by the rules of its endOfChunk and startOfChunk."""
    chunks, begin, before = [], None, ("O", "")
    for i, label in enumerate([*labels, "O"]):
        mark, _, type_ = label.partition("-")
        mark_before, type_before = before
        ends = (
            (mark_before in ("B", "I") and mark in ("B", "S", "O"))
            or mark_before in ("E", "S")
            or (mark_before != "O" and type_before != type_)
        )
        starts = (
            mark in ("B", "S")
            or (mark_before in ("E", "S", "O") and mark in ("E", "I"))
            or (mark != "O" and type_before != type_)
        )
        if ends and begin is not None:
            chunks.append((type_before, begin, i))
            begin = None
        if starts:
            begin = i
        before = (mark, type_)
    return chunks


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["B-PER", "I-PER", "I-PER"], [("PER", 0, 3)]),
        (["I-PER", "I-LOC", "B-LOC"], [("PER", 0, 1), ("LOC", 1, 2), ("LOC", 2, 3)]),
        (["O", "S-PER", "I-PER", "O"], [("PER", 1, 2), ("PER", 2, 3)]),
        (["B-work of art", "E-work of art"], [("work of art", 0, 2)]),
        (["B-a-b", "I-a-b"], [("a-b", 0, 2)]),
    ],
)
def test_spans_by_hand(labels, expected):
    assert find_marked_spans(labels) == expected


def test_the_table_agrees_with_the_spans_of_all_pairs():
    table = SpanTable.of(LABELS)
    for ids in itertools.product(range(len(LABELS)), repeat=2):
        labels = [LABELS[k] for k in ids]
        spans = find_marked_spans(labels)
        assert table.continues[ids] == ((0, 2) in [span[1:] for span in spans]), labels
        for index, k in enumerate(ids):
            types = [type_ for type_, first, end in spans if first <= index < end]
            assert [table.types[table.type_of[k]]] == (types or [""])
            assert table.outside[k] == (not types)
    assert not table.continues[-1].any()  # the last row is that of padding
    assert not table.continues[:, -1].any()
    assert table.outside[-1]


def test_the_table_of_labels_that_mark_no_spans():
    table = SpanTable.of(["O", "NOUN"])
    assert [table.types[k] for k in table.type_of] == ["O", "NOUN", ""]
    assert table.outside.tolist() == [False, False, True]
    assert not table.continues.any()


@pytest.mark.parametrize(
    ("labels", "length", "expected"),
    [
        ("OI", 2, "II"),
        ("OI", 1, "I"),
        ("OB", 2, "BB"),
    ],
)
def test_labels_of_a_span_in_partial_schemes(labels, length, expected):
    labels = [mark if mark == "O" else f"{mark}-PER" for mark in labels]
    assert label_span("PER", length, SpanScheme.of(labels)) == [f"{mark}-PER" for mark in expected]


def test_a_long_span_needs_an_inside_label():
    scheme = SpanScheme.of(["O", "PER_B", "PER_L", "PER_U"])
    assert label_span("PER", 2, scheme) == ["PER_B", "PER_L"]
    with pytest.raises(ValueError, match=r"A span of 3 words of the type 'PER' needs .* such as 'PER_I', which"):
        label_span("PER", 3, scheme)


@pytest.mark.parametrize("marks", ["BI", "BIES"])
def test_the_best_path_is_the_best_of_all_well_formed_ones(marks):
    labels = ["O", *(f"{mark}-{type_}" for mark in marks for type_ in ("PER", "LOC"))]
    transitions, at_start, at_end = allowed_transitions(labels)
    rng = np.random.default_rng(5)
    for length in (1, 2, 3):
        scores = rng.normal(size=(length, len(labels)))
        well_formed = [
            path
            for path in itertools.product(range(len(labels)), repeat=length)
            if at_start[path[0]] and at_end[path[-1]] and all(transitions[a, b] for a, b in itertools.pairwise(path))
        ]
        expected = max(well_formed, key=lambda path: sum(scores[i, k] for i, k in enumerate(path)))
        assert best_path(scores, transitions, at_start, at_end).tolist() == list(expected)
    assert best_path(np.zeros((0, len(labels))), transitions, at_start, at_end).tolist() == []


def test_allowed_transitions_by_hand():
    def is_well_formed(labels, *path):
        transitions, at_start, at_end = allowed_transitions(labels)
        ids = [labels.index(label) for label in path]
        return bool(at_start[ids[0]] and at_end[ids[-1]] and all(transitions[a, b] for a, b in itertools.pairwise(ids)))

    iob2, iobes = LABELS[:5], LABELS
    assert is_well_formed(iob2, "B-PER", "I-PER", "O")
    assert is_well_formed(iob2, "B-PER", "B-PER")
    assert not is_well_formed(iob2, "I-PER")
    assert not is_well_formed(iob2, "O", "I-PER")
    assert not is_well_formed(iob2, "B-PER", "I-LOC")
    assert is_well_formed(iobes, "S-PER", "B-LOC", "I-LOC", "E-LOC")
    assert not is_well_formed(iobes, "B-PER")
    assert not is_well_formed(iobes, "B-PER", "O")
    assert not is_well_formed(iobes, "E-PER")
    assert not is_well_formed(iobes, "B-PER", "E-PER", "E-PER")
    iob1 = ["O", "I-PER", "B-LOC", "I-LOC"]  # without B-PER
    assert is_well_formed(iob1, "I-PER", "I-PER", "O", "I-PER")
    assert is_well_formed(iob1, "B-LOC", "I-PER")
    assert is_well_formed(iob1, "O", "I-LOC", "B-LOC", "I-LOC")
    assert is_well_formed(iob1, "I-PER", "I-LOC")
    without_b = ["O", "I-PER", "S-LOC", "B-LOC", "I-LOC"]  # "S" does not occur in IOB1
    assert is_well_formed(without_b, "I-PER", "I-PER", "O", "I-PER", "S-LOC")
    assert not is_well_formed(without_b, "O", "I-LOC")
    assert not is_well_formed(without_b, "I-PER", "I-LOC")
    with_ends = ["O", "I-PER", "E-PER"]
    assert is_well_formed(with_ends, "E-PER", "I-PER", "E-PER", "O")
    assert not is_well_formed(with_ends, "I-PER", "O")
