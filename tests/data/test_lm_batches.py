"""Streams of words: the original's test vector, the order of documents, and little memory."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from lmzoo.data.corpora import DocumentStreams
from lmzoo.data.corpora.lm_batches import EncodedDocuments, cut_streams
from lmzoo.text import CharacterTokenizer, TextWarning, WordTokenizer

SENTENCES = [["the", "unknown", "."], ["th", "."], ["the"]]
IDS = ["<S>", "</S>", "<UNK>", "the", ".", "\u0100t"]
DOCUMENTS = [["a b c", ["d"]], [], [["e", "f"], "", "g h i j"], [["k"]]]
WORDS = [["a", "b", "c"], ["d"], ["e", "f"], ["g", "h", "i", "j"], ["k"]]


def ids_of(batch):
    """Return the ids of inputs and of next words, as in the original's files, where the first word is 0."""
    tokenizer = WordTokenizer(IDS)
    inputs_and_targets = ([[pair[i] for pair in row] for row in batch] for i in (0, 1))
    return [[[id - 1 for id in row] for row in tokenizer.tokenize(rows)] for rows in inputs_and_targets]


def make_streams(documents=DOCUMENTS, rows=2, steps=3, **arguments):
    return DocumentStreams(documents, lambda *batch: batch, rows, steps, **arguments)


def words_read(streams, side, count=None):
    """Return the next words in one direction, row by row, of each batch."""
    batches = itertools.islice(streams.batches(), count)
    return [[step[side][1] for row in rows for step in row] for rows, _, _ in batches]


def concatenate(lists):
    return list(itertools.chain.from_iterable(lists))


def test_the_originals_vector():
    forward = cut_streams(itertools.cycle(SENTENCES), rows=2, steps=3)
    assert ids_of(next(forward)) == [[[0, 3, 2], [0, 2, 4]], [[3, 2, 4], [2, 4, 1]]]
    assert ids_of(next(forward)) == [[[4, 0, 3], [0, 3, 2]], [[1, 3, 1], [3, 2, 4]]]
    backward = cut_streams(itertools.cycle(SENTENCES), rows=2, steps=3, backward=True)
    assert ids_of(next(backward)) == [[[1, 4, 2], [1, 4, 2]], [[4, 2, 3], [4, 2, 0]]]
    assert ids_of(next(backward)) == [[[3, 1, 3], [1, 4, 2]], [[0, 3, 0], [4, 2, 3]]]


def test_the_originals_characters():
    """The original's files number the characters of a truncated word without 0 for padding."""
    assert (CharacterTokenizer(5).as_array(["unknown"], 1) - 1).tolist() == [[258, 117, 110, 107, 259]]


def test_the_last_words_fill_a_batch_only_if_complete():
    assert len(list(cut_streams(WORDS, rows=2, steps=5))) == 1
    complete = list(cut_streams(WORDS, rows=2, steps=5, complete=True))
    words = sorted(word for batch in complete for row in batch for _, word in row)
    assert words == sorted([*"abcdefghijk", *["</S>"] * 5])
    assert [[len(row) for row in batch] for batch in complete] == [[5, 5], [3, 3]]


def test_documents_are_repeated_without_end():
    streams = make_streams(shuffle=False)
    streams.count()
    assert (streams.num_words, streams.length, streams.num_batches) == (16, 2, 2)
    batches = list(streams.batches())
    assert [continues for _, _, continues in batches] == [False, True]
    assert {steps for _, steps, _ in batches} == {3}
    forward = list(itertools.islice(cut_streams(itertools.cycle(WORDS), 2, 3), 2))
    backward = list(itertools.islice(cut_streams(itertools.cycle(WORDS), 2, 3, backward=True), 2))
    for (rows, _, _), *expected in zip(batches, forward, backward, strict=True):
        assert rows == [list(zip(*row, strict=True)) for row in zip(*expected, strict=True)]
    endless = make_streams(shuffle=False, length=None)
    assert endless.num_batches is None
    assert words_read(endless, 0, 16)[:2] == words_read(streams, 0)
    counts = Counter(concatenate(words_read(endless, 1, 16)))
    assert set(counts) == {*"abcdefghijk", "<S>"}
    assert {abs(counts[word] - 6) <= 1 for word in "abcdefghijk"} == {True}, "six times through"


def test_the_seed_decides_the_order_of_documents():
    """Each epoch, direction and pass has another order; sentences of a document stay in order."""
    documents = [[f"{i} a", f"{i} b"] for i in range(11)]
    streams = make_streams(documents, rows=1, steps=66, seed=(3, 5), length=2)
    first, repeated = words_read(streams, 0), words_read(streams, 0)
    assert first == repeated == words_read(make_streams(documents, rows=1, steps=66, seed=(3, 5), length=2), 0)
    order = first[0][::6]
    assert sorted(order) == sorted(str(i) for i in range(11))
    assert first[0] == [word for i in order for word in (i, "a", "</S>", i, "b", "</S>")]
    streams.begin_epoch(1)
    changed_seed = make_streams(documents, 1, 66, seed=(4,), length=1)
    for words in (words_read(streams, 0)[0], first[1], words_read(changed_seed, 0)[0]):
        assert sorted(words) == sorted(first[0])
        assert words != first[0]
    backward = words_read(make_streams(documents, 1, 66, seed=(3, 5), length=1), 1)[0]
    assert backward[1::6] != order
    assert sorted(backward[1::6]) == sorted(order)
    assert words_read(make_streams(documents, 1, 66, shuffle=False, length=1), 0)[0][::6] == [str(i) for i in range(11)]


def test_each_document_once_without_an_end():
    streams = make_streams(rows=3, steps=2, once=True)
    streams.count()
    assert streams.num_words == 16
    for side, marker in enumerate(("</S>", "<S>")):
        batches = words_read(streams, side)
        assert len(batches) == streams.length
        assert sorted(concatenate(batches)) == sorted([*"abcdefghijk", *[marker] * 5])


class Corpus:
    """Documents that count how often they are read."""

    def __init__(self):
        self.num_read = 0

    def __iter__(self):
        for i in range(1000):
            self.num_read += 1
            yield [[f"w{i}", "x"]]


def test_documents_are_read_on_demand():
    corpus = Corpus()
    streams = make_streams(corpus, rows=2, steps=3, length=5)
    batches = streams.batches()
    next(batches)
    assert corpus.num_read <= 4, "two documents in each direction"
    next(batches)
    assert corpus.num_read <= 8


def test_identity_names_what_has_changed():

    def identity(documents, count=True, **arguments):
        streams = make_streams(documents, rows=1, steps=1, **arguments)
        if count:
            streams.count()
        return streams.identity()

    expected = identity(DOCUMENTS)
    assert expected == identity([[*document] for document in DOCUMENTS])
    assert (expected["first sentence"], expected["last sentence"]) == ("a b c", "k")
    assert (expected["number of documents"], expected["number of words"]) == (4, 16)
    altered = {
        "last sentence": [*DOCUMENTS[:-1], [["l"]]],
        "number of documents": [*DOCUMENTS, DOCUMENTS[-1]],
        "number of words": [*DOCUMENTS[:2], [["e", "f"], "g h i j m"], DOCUMENTS[3]],
    }
    for name, documents in altered.items():
        changed = identity(documents)
        assert changed[name] != expected[name]
        assert identity(documents, count=False).get(name) == (None if name == "number of words" else changed[name])
    assert identity([[["a"]], []])["last sentence"] == ""
    assert "last sentence" not in identity(Corpus())


def test_batches_by_index():
    streams = make_streams(shuffle=False, length=3)
    expected = list(streams.batches())
    assert [streams[i] for i in (0, 1, 0, 1, 2)] == [expected[i] for i in (0, 1, 0, 1, 2)]
    with pytest.raises(IndexError, match="batch 3 comes next, not 1"):
        streams[1]


def test_documents_without_streams():
    encoded = EncodedDocuments.of(DOCUMENTS)
    assert encoded.lengths.tolist() == [6, 0, 8, 2]
    (forward, backward), *_, last = encoded.select(np.array([2, 0])).documents[0]
    assert (forward, backward, last) == (("<S>", "e"), ("</S>", "f"), (("j", "</S>"), ("g", "<S>")))


def test_invalid_text_has_one_warning():
    documents = [[b"bad \xff word", "fine"], [b"\xff again"]]
    streams = make_streams(documents, rows=1, steps=2)
    with pytest.warns(TextWarning, match="1 of 2 texts held invalid UTF-8") as caught:
        streams.count()
    assert "\ufffd" in concatenate(words_read(streams, 0))  # without another warning
    assert len(caught) == 1
    with pytest.warns(TextWarning) as caught:
        EncodedDocuments.of(documents)
    assert len(caught) == 1


def test_errors_of_documents():
    with pytest.raises(TypeError, match="read several times, which a generator does not allow"):
        make_streams(document for document in DOCUMENTS)
    with pytest.raises(TypeError, match=r"`documents\[1\]` must be a list of strings, got one string"):
        make_streams([["a"], "b"]).count()
    with pytest.raises(TypeError, match=r"`documents\[0\]\[1\]` must be a string, got 3"):
        make_streams([["a", 3]]).count()
    with pytest.raises(TypeError, match="Expected a list of documents"):
        EncodedDocuments.of("a text")
    with pytest.raises(ValueError, match="the documents hold no words"):
        make_streams([[], [""], [[]]]).count()
    with pytest.raises(ValueError, match="the documents hold no words"):
        next(make_streams([[]]).batches())
    with pytest.raises(
        ValueError, match="hold 2 words, ends of sentences included, too few for a batch of 2 rows of 3"
    ):
        make_streams([["one"]]).count()
    short = make_streams([["one"]], rows=2, steps=1)
    short.count()
    assert words_read(short, 0) == [["one", "one"]]
