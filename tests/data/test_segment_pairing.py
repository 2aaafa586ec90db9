"""Pairs of segments: what B.3 and D.5 of the published recipes say, counted."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.data.corpora import SegmentPairs, segment_pairs
from lmzoo.text import Packing, Preprocessor, TextWarning, WordPieceTokenizer
from lmzoo.text.validate_text import collect_warnings

SPECIAL = WordPieceTokenizer.special_tokens
DOCUMENTS, SENTENCES = 61, 23
# Every sentence has words of its own, and so every token tells where it was: `d` of a document, `s` of a sentence.
NAMES = [f"d{d}s{s}" for d in range(DOCUMENTS) for s in range(SENTENCES)]
TOKENIZER = WordPieceTokenizer([*SPECIAL, *NAMES])
CLS, SEP = TOKENIZER.token_to_id("[CLS]"), TOKENIZER.token_to_id("[SEP]")


def preprocessor(length):
    return Preprocessor(TOKENIZER, Packing("[CLS]", "[SEP]", ("[SEP]",), segments=True), length)


def documents(words=(2, 8), count=DOCUMENTS, sentences=SENTENCES, seed=3):
    rng = np.random.default_rng(seed)
    return [[" ".join([f"d{d}s{s}"] * rng.integers(*words)) for s in range(sentences)] for d in range(count)]


def places(ids):
    """Document and sentence of every token."""
    names = [TOKENIZER.id_to_token(int(i)) for i in ids]
    return [tuple(map(int, name[1:].split("s"))) for name in names]


def rows(pairs):
    """First segment, second segment and label of every pair, tokens by their places; the special tokens checked."""
    for i, label in enumerate(pairs.labels):
        ids = pairs.token_ids[pairs.sequence_splits[i] : pairs.sequence_splits[i + 1]]
        middle = int(pairs.second[i]) - 1
        assert (ids[0], ids[middle], ids[-1]) == (CLS, SEP, SEP)
        yield places(ids[1:middle]), places(ids[middle + 1 : -1]), int(label)


def make(objective, length=64, seed=5, passes=1, short=0.1, **of):
    return segment_pairs(
        documents(**of), preprocessor(length), objective, np.random.default_rng(seed), passes=passes, short=short
    )


def is_between(count, total, share):
    """Whether a share of `total` draws is plausible: within four standard deviations."""
    return abs(count - total * share) <= 4 * (total * share * (1 - share)) ** 0.5


def test_next_sentences():
    """Half are the next ones; the others come from another document, and what they replaced is used afterwards."""
    found = list(rows(make("nsp", passes=3)))
    assert len(found) > 500
    lone = 0
    for first, second, label in found:
        assert first
        assert second
        assert len({d for d, _ in first}) == len({d for d, _ in second}) == 1
        assert (first[0][0] == second[0][0]) == (label == 0)
        for segment in (first, second):
            assert segment == sorted(segment)
        if label == 0 and len(first) + len(second) < 61:  # nothing was cut
            assert second[0][1] == first[-1][1] + 1
        lone += first[0][1] == SENTENCES - 1  # the document's last sentence, which has none to follow
    random = sum(label for *_, label in found)
    assert is_between(random - lone, len(found) - lone, 0.5)


def test_what_was_replaced_is_put_back():
    """With short sentences that all fit nothing is lost: the first segments and true seconds are the documents."""
    pairs = list(rows(make("nsp", words=(1, 2), sentences=7, length=40, short=0.0)))
    seen = {place for first, second, label in pairs for part in (first, second if label == 0 else []) for place in part}
    assert seen == {(d, s) for d in range(DOCUMENTS) for s in range(7)}
    used = [place for first, second, label in pairs for part in (first, second if label == 0 else []) for place in part]
    assert len(used) == len(seen), "a sentence is used once, random segments aside"


def test_sentence_order():
    """Half are swapped; both segments are of one document, one after the other."""
    found = list(rows(make("sop", passes=3, words=(2, 5))))
    swapped = 0
    for first, second, label in found:
        if first[0][0] != second[0][0]:  # one sentence alone
            assert label == 1
            assert len(set(first)) == 1
            continue
        before, after = (second, first) if label else (first, second)
        assert before[-1] < after[0]
        swapped += label
    same = [pair for pair in found if pair[0][0][0] == pair[1][0][0]]
    assert len(same) > 300
    assert is_between(swapped, len(same), 0.5)


def test_where_segments_are_parted():
    """After any sentence but the last, each as often."""
    found = rows(make("sop", words=(1, 2), sentences=5, length=40, passes=7, short=0.0))
    counts = np.bincount([min(len(first), len(second)) for first, second, _ in found], minlength=3)
    assert counts[0] == counts[3:].sum() == 0
    assert is_between(counts[1], counts.sum(), 0.5)  # 1 or 4 sentences in the first, as opposed to 2 or 3
    pairs = segment_pairs(
        documents((1, 2), sentences=5), preprocessor(40), "sop", np.random.default_rng(1), passes=7, short=0.0
    )
    ahead = [len(second) if label else len(first) for first, second, label in rows(pairs)]
    assert all(is_between(np.sum(np.array(ahead) == n), len(ahead), 0.25) for n in (1, 2, 3, 4))


def test_lengths():
    """Rows are full, but for the end of a document and a tenth of the documents, which take a target of 2 or more."""
    short = make("nsp", length=64, words=(1, 2), passes=11, short=1.0)
    chunks = (len(first) + len(second) for first, second, label in rows(short) if label == 0)
    assert min(chunks) == 2
    full = make("nsp", length=64, words=(9, 10), short=0.0)
    assert full.lengths.max() == 64
    assert np.mean(full.lengths == 64) > 0.7
    drawn = make("sop", length=16, words=(1, 2), sentences=13, passes=40)
    # 13 tokens fit, and so a document is one row, unless its target is smaller.
    per_document = DOCUMENTS * 40
    whole = np.sum(drawn.lengths == 16)
    assert is_between(whole, per_document, 0.9 + 0.1 / 12)  # of 2 to 13 one is 13


@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_what_does_not_fit(objective):
    """The longer segment loses tokens, from both ends; the second one on ties."""
    # Sentences of 9 tokens, all of them different, and room for 11.
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
        assert is_between(column.sum(), lost * len(column), 0.5)


def test_one_sentence_alone():
    """It gets a random segment and label 1 with either objective."""
    texts = documents(sentences=1)
    texts[0].append("d0s1")
    for objective in ("nsp", "sop"):
        with pytest.warns(TextWarning, match="^60 of 61 documents are one sentence, always paired with a random one"):
            pairs = segment_pairs(texts, preprocessor(64), objective, np.random.default_rng(5))
        found = [pair for pair in rows(pairs) if pair[0][0][0] > 0]
        assert len(found) == DOCUMENTS - 1
        assert {label for *_, label in found} == {1}
        assert all(first[0][0] != second[0][0] for first, second, _ in found)
        assert len({second[0] for _, second, _ in found}) > DOCUMENTS / 3


def test_a_document_alone_is_its_own_other():
    found = list(rows(make("nsp", count=1)))
    assert {label for *_, label in found} == {0, 1}


def test_few_documents():
    """The own one is drawn often, and then drawn again."""
    found = list(rows(make("nsp", count=3, passes=30)))
    assert all((first[0][0] == second[0][0]) == (label == 0) for first, second, label in found)


def test_random_segments_begin_anywhere():
    found = rows(make("nsp", passes=5))
    begun = {second[0][1] for _, second, label in found if label}
    assert len(begun) > SENTENCES - 4


def test_empty_documents_and_sentences_are_left_out():
    filled = documents(count=3, sentences=4)
    holes = [[], filled[0], ["", " "], [filled[1][0], "", *filled[1][1:]], filled[2], [""]]
    expected = segment_pairs(filled, preprocessor(32), "nsp", np.random.default_rng(9))
    with pytest.warns(TextWarning, match="^3 of 6 documents held no tokens and were left out.$"):
        found = segment_pairs(holes, preprocessor(32), "nsp", np.random.default_rng(9))
    assert list(rows(found)) == list(rows(expected))
    with pytest.warns(TextWarning, match="^2 of 2 documents held no tokens"):
        nothing = segment_pairs([[], [""]], preprocessor(32), "sop", np.random.default_rng(9))
    assert (len(nothing), len(nothing.labels)) == (0, 0)


def test_one_warning():
    texts = [[], ["d0s0"], ["d1s0", "d1s1"], ["", "d2s0"]]
    with collect_warnings() as warned:
        segment_pairs(texts, preprocessor(32), "sop", np.random.default_rng(9))
    message = (
        "1 of 4 documents held no tokens and were left out; 2 of 3 documents are one sentence, always paired with a "
        "random one."
    )
    assert warned == [message]


def test_the_generator_says_it_all():
    first, again, other = (make("nsp", seed=seed) for seed in (5, 5, 6))
    assert list(rows(first)) == list(rows(again))
    assert list(rows(first)) != list(rows(other))
    assert first.labels.dtype == np.int32
    documents_in_turn = [found[0][0][0] for found in rows(first)]
    assert documents_in_turn != sorted(documents_in_turn)


def test_passes_differ():
    once, thrice = make("nsp"), make("nsp", passes=3)
    assert 2.5 * len(once) < len(thrice) < 3.5 * len(once)
    found = [(tuple(first), tuple(second)) for first, second, _ in rows(thrice)]
    assert len(set(found)) > 0.8 * len(found)


def test_labels_go_along():
    pairs = make("nsp", count=5)
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
def test_errors(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
