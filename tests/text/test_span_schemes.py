"""Label sets of all schemes and spellings: spans, scores and transitions, compared with conlleval and seqeval."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lmzoo.common.span_marks import SpanScheme, expand_marks, marks_spans
from lmzoo.evaluation.reports import compare_tags
from lmzoo.text.span_labels import SpanTable, allowed_transitions, find_marked_spans, label_span
from lmzoo.training.span_metrics import IGNORED, SpanScore
from tests.text.test_span_labels import conlleval

TYPES = ("PER", "LOC", "a_b-c")
# The letters of each scheme at the beginning, inside, at the end and of single words.
SCHEMES = {"IOB2": "BIIB", "IOE2": "IIEE", "IOBES": "BIES", "BILOU": "BILU", "BMES": "BMES", "BIO-S": "BIIS"}
SPELLINGS = {
    "B-PER": lambda mark, type_: f"{mark}-{type_}",
    "B_PER": lambda mark, type_: f"{mark}_{type_}",
    "PER-B": lambda mark, type_: f"{type_}-{mark}",
    "PER_B": lambda mark, type_: f"{type_}_{mark}",
    "B": lambda mark, type_: mark,
}
TO_IOBES = {"U": "S", "L": "E", "M": "I"}
EXTRA = ("X", "[CLS]", "-")
cases = pytest.mark.parametrize(("scheme", "spelling"), list(itertools.product(SCHEMES, SPELLINGS)))


def label_set(scheme, spelling, *extra):
    """Map the labels of a scheme to IOBES labels with "-"; `extra` labels are outside."""
    types = TYPES if spelling != "B" else ("_",)
    pairs = [(mark, type_) for mark in dict.fromkeys(SCHEMES[scheme]) for type_ in types]
    labels = {"O": "O", **{SPELLINGS[spelling](*pair): f"{TO_IOBES.get(pair[0], pair[0])}-{pair[1]}" for pair in pairs}}
    return {**labels, **dict.fromkeys(extra, "O")}


def well_formed(rng, scheme, spelling, length):
    """Draw labels of words in which every span has the marks of its scheme."""
    begin, inside, end, single = SCHEMES[scheme]
    types = ("PER", "LOC") if spelling != "B" else ("_",)
    labels = []
    while (remaining := length - len(labels)) > 0:
        size = min(remaining, int(rng.integers(1, 5)))
        marks = [single] if size == 1 else [begin, *[inside] * (size - 2), end]
        type_ = str(rng.choice(types))
        labels += ["O"] * size if rng.random() < 0.4 else [SPELLINGS[spelling](mark, type_) for mark in marks]
    return labels


@cases
def test_spans_of_any_labels_follow_conlleval(scheme, spelling):
    to_iobes = label_set(scheme, spelling, *EXTRA[: 1 if spelling == "B" else 3])
    span_scheme, names = SpanScheme.of(to_iobes), [*to_iobes]
    rng = np.random.default_rng(3)
    for length in (0, 1, 2, 3, 7, 13):
        for _ in range(30):
            labels = [names[k] for k in rng.integers(0, len(names), length)]
            assert find_marked_spans(labels, span_scheme) == conlleval([to_iobes[label] for label in labels]), labels


@cases
def test_scores_of_any_labels_follow_seqeval(scheme, spelling):
    peer = pytest.importorskip("seqeval.metrics")
    to_iobes = label_set(scheme, spelling, "X")
    names, rng = [*to_iobes], np.random.default_rng(5)
    metric = SpanScore(names)
    actual, predicted = rng.integers(0, len(names), (2, 31, 13))
    predicted = np.where(rng.random(actual.shape) < 0.8, actual, predicted)
    ignored = rng.random(actual.shape) < 0.1
    metric.update_state(np.where(ignored, IGNORED, actual), np.eye(len(names))[predicted])
    words = [
        [[names[k] for k in row[~skipped]] for row, skipped in zip(side, ignored, strict=True)]
        for side in (actual, predicted)
    ]
    expected = peer.f1_score(*([[to_iobes[label] for label in row] for row in side] for side in words))
    assert 0.3 < expected < 0.95
    assert float(metric.result()) == pytest.approx(expected, abs=1e-6)
    assert compare_tags(*words, names).scores["span_f1"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("spelling", ["B-PER", "PER-B", "B"])
@pytest.mark.parametrize("scheme", ["IOB2", "IOE2", "IOBES", "BILOU", "BMES"])
def test_scores_of_well_formed_labels_are_those_of_seqeval_in_strict_mode(scheme, spelling):
    peer, schemes = pytest.importorskip("seqeval.metrics"), pytest.importorskip("seqeval.scheme")
    rng = np.random.default_rng(7)
    lengths = rng.integers(1, 17, 41)
    actual, predicted = ([well_formed(rng, scheme, spelling, length) for length in lengths] for _ in range(2))
    predicted[:20] = actual[:20]
    # seqeval has no BMES, whose "M" is the "I" of IOBES.
    in_iobes = [[[label.replace("M", "I") for label in row] for row in side] for side in (actual, predicted)]
    expected = peer.f1_score(
        *in_iobes, suffix=spelling == "PER-B", mode="strict", scheme=getattr(schemes, scheme.replace("BMES", "IOBES"))
    )
    assert 0.3 < expected < 0.95
    scores = compare_tags(actual, predicted, [*label_set(scheme, spelling)]).scores
    assert scores["span_f1"] == pytest.approx(expected, abs=1e-12)


@cases
def test_transitions_follow_the_scheme(scheme, spelling):
    names = [*(labels := label_set(scheme, spelling))]
    regular = allowed_transitions([*labels.values()])
    rng = np.random.default_rng(11)
    for table, expected in zip(allowed_transitions(names), regular, strict=True):
        np.testing.assert_array_equal(table, expected)
    transitions, at_start, at_end = allowed_transitions([*names, "X"])
    outside = names.index("O")
    for table, expected in zip((transitions, at_start, at_end), regular, strict=True):
        np.testing.assert_array_equal(table[: len(names)][..., : len(names)], expected)
    np.testing.assert_array_equal(transitions[-1], transitions[outside])  # "X" follows, and is followed, as "O"
    np.testing.assert_array_equal(transitions[:, -1], transitions[:, outside])
    assert at_start[-1]
    assert at_end[-1]
    for _ in range(50):
        path = [names.index(label) for label in well_formed(rng, scheme, spelling, 7)]
        assert at_start[path[0]]
        assert at_end[path[-1]]
        assert all(transitions[step] for step in itertools.pairwise(path))


@cases
def test_labels_of_a_span(scheme, spelling):
    begin, inside, end, single = SCHEMES[scheme]
    type_ = "_" if spelling == "B" else "PER"
    span_scheme = SpanScheme.of(label_set(scheme, spelling, "X"))
    for marks in (single, begin + end, begin + inside + inside + end):
        expected = [SPELLINGS[spelling](mark, type_) for mark in marks]
        assert label_span(type_, len(marks), span_scheme) == expected
        assert find_marked_spans(expected, span_scheme) == [(type_, 0, len(marks))]


@pytest.mark.parametrize(
    ("labels", "unmarked"),
    [
        (["O", "B-PER", "I-PER", "X"], ["X"]),
        (["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "X", "[CLS]", "[SEP]"], ["X", "[CLS]", "[SEP]"]),
        (["O", "B-PER", "I-PER", "X", "[CLS]"], ["X", "[CLS]"]),
        (["[PAD]", "B", "I", "O", "X", "[CLS]", "[SEP]"], ["[PAD]", "X", "[CLS]", "[SEP]"]),
        (["B-PER", "I-PER", "B_LOC", "I_LOC"], ["B_LOC", "I_LOC"]),
        (["O", "NOUN", "VERB", "ADJ", "B-PER", "E-PER"], ["NOUN", "VERB", "ADJ"]),
        (["PER-B", "PER-I", "PER"], ["PER"]),
        (["B-PER", "I-PER", "B_LOC"], ["B_LOC"]),
        (["O", "U-PER", "B-", "L-PER"], ["B-"]),
        (["B", "I", "O", "-"], ["-"]),
        (["O", "I"], []),
        (["O", "S-PER"], []),
        (["B", "M", "E", "S"], []),
        (["b-per", "i-per", "O"], None),
        (["O", "B-PER", "PER"], None),  # too few marks
        (["S", "M", "L"], None),  # sizes
        (["N", "V", "A", "S", "I"], None),
        (["O", "X"], None),
        (["NOUN", "VERB"], None),
        (["O"], None),
        ([], None),
    ],
)
def test_which_labels_mark_spans(labels, unmarked):
    scheme = SpanScheme.of(labels)
    assert marks_spans(labels) == (scheme is not None)
    assert unmarked == (None if scheme is None else [*scheme.others])
    table = SpanTable.of(labels)
    outside = [label for label, is_outside in zip(labels, table.outside, strict=False) if is_outside]
    assert outside == ([] if unmarked is None else [label for label in labels if label in ("O", *unmarked)])
    assert not marks_spans(None)


def test_every_type_has_every_mark():
    assert expand_marks({"O", "B-LOC", "I-PER", "B-PER"}) == {"O", "B-LOC", "I-LOC", "B-PER", "I-PER"}
    assert expand_marks({"O", "S-X-Y", "B-Z"}) == {"O", "S-X-Y", "B-X-Y", "S-Z", "B-Z"}
    assert expand_marks({"NOUN", "B-LOC"}) == {"NOUN", "B-LOC"}
    assert expand_marks({"O", "PER_B", "LOC_L", "X"}) == {"O", "PER_B", "PER_L", "LOC_B", "LOC_L", "X"}
    assert expand_marks({"O", "U-PER", "B-LOC"}) == {"O", "U-PER", "U-LOC", "B-PER", "B-LOC"}
    assert expand_marks({"O", "B", "E"}) == {"O", "B", "E"}
