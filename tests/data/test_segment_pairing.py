"""Pairs of segments: counts that B.3 and D.5 of the published recipes imply."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.data.corpora import SegmentPairs, segment_pairs
from lmzoo.text import Packing, Preprocessor, TextWarning, WordPieceTokenizer
from lmzoo.text.validate_text import collect_warnings

SPECIAL = WordPieceTokenizer.special_tokens
DOCUMENTS, SENTENCES = 61, 23
# Every sentence has its own word, so that a token gives its document `d` and its sentence `s`.
NAMES = [f"d{d}s{s}" for d in range(DOCUMENTS) for s in range(SENTENCES)]
TOKENIZER = WordPieceTokenizer([*SPECIAL, *NAMES])
CLS, SEP = TOKENIZER.token_to_id("[CLS]"), TOKENIZER.token_to_id("[SEP]")


def preprocessor(length):
    return Preprocessor(TOKENIZER, Packing("[CLS]", "[SEP]", ("[SEP]",), segments=True), length)


def documents(words=(2, 8), count=DOCUMENTS, sentences=SENTENCES, seed=3):
    rng = np.random.default_rng(seed)
    return [[" ".join([f"d{d}s{s}"] * rng.integers(*words)) for s in range(sentences)] for d in range(count)]


def positions(ids):
    """Return the document and the sentence of every token."""
    names = [TOKENIZER.id_to_token(int(i)) for i in ids]
    return [tuple(map(int, name[1:].split("s"))) for name in names]


def rows(pairs):
    """Check the special tokens, and iterate over the positions of both segments' tokens and the label of every pair."""
    for i, label in enumerate(pairs.labels):
        ids = pairs.token_ids[pairs.sequence_splits[i] : pairs.sequence_splits[i + 1]]
        middle = int(pairs.second[i]) - 1
        assert (ids[0], ids[middle], ids[-1]) == (CLS, SEP, SEP)
        yield positions(ids[1:middle]), positions(ids[middle + 1 : -1]), int(label)


def make_pairs(objective, length=64, seed=5, passes=1, short=0.1, **settings):
    return segment_pairs(
        documents(**settings), preprocessor(length), objective, np.random.default_rng(seed), passes=passes, short=short
    )


def is_plausible(count, total, probability):
    """Return whether a count of `total` draws is within four standard deviations of its mean."""
    return abs(count - total * probability) <= 4 * (total * probability * (1 - probability)) ** 0.5


def test_next_sentences():
    """Half of the second segments come next, and half come from another document."""
    pairs = list(rows(make_pairs("nsp", passes=3)))
    assert len(pairs) > 500
    without_next = 0
    for first, second, label in pairs:
        assert first
        assert second
        assert len({d for d, _ in first}) == len({d for d, _ in second}) == 1
        assert (first[0][0] == second[0][0]) == (label == 0)
        for segment in (first, second):
            assert segment == sorted(segment)
        if label == 0 and len(first) + len(second) < 61:  # not truncated
            assert second[0][1] == first[-1][1] + 1
        without_next += first[0][1] == SENTENCES - 1  # the document's last sentence
    random = sum(label for *_, label in pairs)
    assert is_plausible(random - without_next, len(pairs) - without_next, 0.5)


def test_replaced_segments_are_used_afterwards():
    """If all sentences fit, the first segments and the true second ones are the documents."""
    pairs = list(rows(make_pairs("nsp", words=(1, 2), sentences=7, length=40, short=0.0)))
    used = [
        position
        for first, second, label in pairs
        for part in (first, second if label == 0 else [])
        for position in part
    ]
    assert sorted(used) == [(d, s) for d in range(DOCUMENTS) for s in range(7)], "a sentence is lost or used twice"


def test_sentence_order():
    """Both segments are neighbors in one document, and half of the pairs are swapped."""
    pairs = list(rows(make_pairs("sop", passes=3, words=(2, 5))))
    swapped = 0
    for first, second, label in pairs:
        if first[0][0] != second[0][0]:  # a document of one sentence
            assert label == 1
            assert len(set(first)) == 1
            continue
        before, after = (second, first) if label else (first, second)
        assert before[-1] < after[0]
        swapped += label
    of_one_document = [pair for pair in pairs if pair[0][0][0] == pair[1][0][0]]
    assert len(of_one_document) > 300
    assert is_plausible(swapped, len(of_one_document), 0.5)


def test_segments_are_split_after_any_sentence():
    """Each of the four splits of five sentences is as likely."""
    pairs = rows(make_pairs("sop", words=(1, 2), sentences=5, length=40, passes=7, short=0.0, seed=1))
    sizes = [len(second) if label else len(first) for first, second, label in pairs]
    counts = np.bincount(sizes, minlength=5)
    assert counts[0] == counts[5:].sum() == 0
    assert all(is_plausible(count, len(sizes), 0.25) for count in counts[1:5])


def test_lengths_of_rows():
    """Rows are full except at the end of a document and in a tenth of the documents, with a target of 2 or more."""
    short = make_pairs("nsp", length=64, words=(1, 2), passes=11, short=1.0)
    chunks = (len(first) + len(second) for first, second, label in rows(short) if label == 0)
    assert min(chunks) == 2
    full = make_pairs("nsp", length=64, words=(9, 10), short=0.0)
    assert full.lengths.max() == 64
    assert np.mean(full.lengths == 64) > 0.7
    drawn = make_pairs("sop", length=16, words=(1, 2), sentences=13, passes=40)
    # 13 tokens fit, so a document is one row unless its target is smaller. One of the targets from 2 to 13 is 13.
    assert is_plausible(np.sum(drawn.lengths == 16), DOCUMENTS * 40, 0.9 + 0.1 / 12)


@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_the_longer_segment_is_truncated_at_both_ends(objective):
    """The second segment is truncated on ties."""
    # Sentences have 9 different tokens, and 11 fit.
    tokens = [[f"d{d}s{s}" for s in range(18)] for d in range(DOCUMENTS)]
    split = [[" ".join(words[:9]), " ".join(words[9:])] for words in tokens]
    pairs = segment_pairs(split, preprocessor(14), objective, np.random.default_rng(2), short=0.0, passes=20)
    assert set(pairs.lengths) == {14}
    starts = []
    for first, second, _ in rows(pairs):
        assert (len(first), len(second)) == (6, 5)
        for segment in (first, second):
            columns = [s % 9 for _, s in segment]
            assert columns == list(range(columns[0], columns[0] + len(columns)))
        starts.append((first[0][1] % 9, second[0][1] % 9))
    for column, lost in zip(np.array(starts).T, (3, 4), strict=True):
        assert set(column) == set(range(lost + 1))
        assert is_plausible(column.sum(), lost * len(column), 0.5)


def test_a_document_of_one_sentence_has_a_random_segment():
    """Its label is 1 with either objective."""
    texts = documents(sentences=1)
    texts[0].append("d0s1")
    for objective in ("nsp", "sop"):
        with pytest.warns(TextWarning, match="^60 of 61 documents are one sentence, always paired with a random one"):
            pairs = segment_pairs(texts, preprocessor(64), objective, np.random.default_rng(5))
        random = [pair for pair in rows(pairs) if pair[0][0][0] > 0]
        assert len(random) == DOCUMENTS - 1
        assert {label for *_, label in random} == {1}
        assert all(first[0][0] != second[0][0] for first, second, _ in random)
        assert len({second[0] for _, second, _ in random}) > DOCUMENTS / 3


def test_a_part_may_have_no_document_of_two_sentences():
    part = [["d0s0 d0s0"], ["d1s0"]]
    with pytest.warns(TextWarning, match="^2 of 2 documents are one sentence"):
        pairs = segment_pairs(part, preprocessor(32), "sop", np.random.default_rng(11), is_part=True)
    assert pairs.labels.tolist() == [1, 1]
    assert sorted(pairs.lengths.tolist()) == [6, 6]


def test_a_single_document_has_random_segments_of_its_own():
    assert {label for *_, label in rows(make_pairs("nsp", count=1))} == {0, 1}


def test_a_random_segment_is_drawn_again_if_it_is_of_the_same_document():
    pairs = rows(make_pairs("nsp", count=3, passes=30))
    assert all((first[0][0] == second[0][0]) == (label == 0) for first, second, label in pairs)


def test_random_segments_begin_anywhere():
    begins = {second[0][1] for _, second, label in rows(make_pairs("nsp", passes=5)) if label}
    assert len(begins) > SENTENCES - 4


def test_empty_documents_have_no_pairs():
    with pytest.warns(TextWarning, match="^2 of 2 documents held no tokens"):
        pairs = segment_pairs([[], [""]], preprocessor(32), "sop", np.random.default_rng(9))
    assert (len(pairs), len(pairs.labels)) == (0, 0)


def test_empty_and_short_documents_have_one_warning():
    texts = [[], ["d0s0"], ["d1s0", "d1s1"], ["", "d2s0"]]
    with collect_warnings() as caught:
        segment_pairs(texts, preprocessor(32), "sop", np.random.default_rng(9))
    message = (
        "1 of 4 documents held no tokens and were left out; 2 of 3 documents are one sentence, always paired with a "
        "random one."
    )
    assert caught == [message]


def test_the_generator_decides_the_pairs():
    first, repeated, changed = (make_pairs("nsp", seed=seed) for seed in (5, 5, 6))
    assert list(rows(first)) == list(rows(repeated))
    assert list(rows(first)) != list(rows(changed))
    assert first.labels.dtype == np.int32
    order = [segment[0][0] for segment, *_ in rows(first)]
    assert order != sorted(order)


def test_passes_differ():
    once, thrice = make_pairs("nsp"), make_pairs("nsp", passes=3)
    assert 2.5 * len(once) < len(thrice) < 3.5 * len(once)
    pairs = [(tuple(first), tuple(second)) for first, second, _ in rows(thrice)]
    assert len(set(pairs)) > 0.8 * len(pairs)


def test_selected_pairs_have_their_labels():
    pairs = make_pairs("nsp", count=5)
    order = np.random.default_rng(3).permutation(len(pairs))
    assert list(rows(pairs.select(order))) == [list(rows(pairs))[i] for i in order]
    assert isinstance(pairs[2:5], SegmentPairs)
    assert list(rows(pairs[2:5])) == list(rows(pairs))[2:5]


RNG = np.random.default_rng(5)
ERRORS = [
    (lambda: segment_pairs([["a"]], preprocessor(16), "mlm", RNG), ValueError, '`objective` must be "nsp" or "sop"'),
    (lambda: segment_pairs([["a"]], preprocessor(4), "nsp", RNG), ValueError, "room for 1 tokens .* at least 5"),
    (lambda: segment_pairs([["a"], ["b"]], preprocessor(16), "sop", RNG), ValueError, "None .* has two sentences"),
    (lambda: segment_pairs([["a"], ["b"]], preprocessor(16), "nsp", RNG), ValueError, "None .* has two sentences"),
    (lambda: segment_pairs("a b", preprocessor(16), "nsp", RNG), TypeError, "list of documents, each a list of sent"),
    (lambda: segment_pairs([["a"], "b"], preprocessor(16), "nsp", RNG), TypeError, r"`documents\[1\]` must be a list"),
    (lambda: segment_pairs([["a", 3]], preprocessor(16), "nsp", RNG), TypeError, r"`documents\[0\]\[1\]` must be a"),
]


@pytest.mark.parametrize(("call", "kind", "message"), ERRORS)
def test_errors_of_arguments(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
