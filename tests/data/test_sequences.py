"""Rows of a tokenized corpus: equal to rows of the same documents in memory, little padding, little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from lmzoo.data.corpora import (
    SegmentPairs,
    TokenCorpus,
    pack_documents,
    pack_running_text,
    pack_sentences,
    segment_pairing,
    segment_pairs,
    write_corpus,
)
from lmzoo.data.corpora.sequences import WithSpaces
from lmzoo.text import LengthBatches, Packing, Preprocessor, TextWarning
from lmzoo.text.batching import fit_buckets
from lmzoo.text.validate_text import clean_texts, collect_warnings
from tests.data.small_corpora import TOKENIZER, WORDS, packer

RECIPES = {
    "documents": lambda source, pack, seed: pack_documents(source, pack),
    "running text": lambda source, pack, seed: pack_running_text(source, pack),
    "full sentences": lambda source, pack, seed: pack_sentences(source, pack),
    "document sentences": lambda source, pack, seed: pack_sentences(source, pack, across_documents=False),
    "nsp": lambda source, pack, seed: segment_pairs(source, pack, "nsp", np.random.default_rng(seed), 2),
    "sop": lambda source, pack, seed: segment_pairs(source, pack, "sop", np.random.default_rng(seed), 2),
}


def quietly(make, *arguments):
    """Call `make` without its warning of documents of one sentence."""
    with collect_warnings():
        return make(*arguments)


def documents(count=61, longest=12, seed=3):
    rng = np.random.default_rng(seed)
    sentences = [" ".join(rng.choice(WORDS, n)) for n in range(1, longest) for _ in range(13)]
    return [list(rng.choice(sentences, rng.integers(1, 14))) for _ in range(count)]


def arrays_of(rows):
    return {name: value for name, value in vars(rows).items() if isinstance(value, np.ndarray)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Write a corpus whose shards end within rows and between the segments of pairs."""
    return write_corpus(documents(), TOKENIZER, tmp_path_factory.mktemp("corpus"), shard_tokens=211)


@pytest.mark.parametrize("length", [7, 31])
@pytest.mark.parametrize("recipe", RECIPES)
def test_rows_are_those_of_the_documents(corpus, recipe, length):
    assert len(corpus.shards) > 7
    make = RECIPES[recipe]
    expected, actual = (arrays_of(quietly(make, source, packer(length), 5)) for source in (documents(), corpus))
    assert actual.keys() == expected.keys()
    for name, array in actual.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
        assert (array.dtype == np.uint16) if name == "token_ids" else (array.dtype == expected[name].dtype)


@pytest.mark.parametrize("recipe", RECIPES)
def test_empty_documents_and_sentences_change_no_row(recipe, tmp_path):
    clean = documents(count=23)
    with_empty = [[], *clean[:5], ["", " "], [clean[5][0], "", *clean[5][1:], " "], *clean[6:], [""]]
    with pytest.warns(TextWarning, match="^3 of 26 documents held no tokens and were left out"):
        corpus = write_corpus(with_empty, TOKENIZER, tmp_path, shard_tokens=101)
    expected = arrays_of(quietly(RECIPES[recipe], clean, packer(13), 5))
    with pytest.warns(TextWarning, match="^3 of 26 documents held no tokens and were left out") as caught:
        in_memory = arrays_of(RECIPES[recipe](with_empty, packer(13), 5))
    assert len(caught) == 1
    from_corpus = arrays_of(quietly(RECIPES[recipe], corpus, packer(13), 5))
    for name, array in expected.items():
        np.testing.assert_array_equal(in_memory[name], array, err_msg=name)
        np.testing.assert_array_equal(from_corpus[name], array, err_msg=name)


def test_rows_are_in_a_temporary_file(corpus, tmp_path):
    before = set(corpus.folder.iterdir())
    corpus_with_folder = TokenCorpus(corpus.folder, sequences_folder=tmp_path / "rows")
    with pytest.raises(FileNotFoundError, match="rows"):
        pack_sentences(corpus_with_folder, packer(31))
    (tmp_path / "rows").mkdir()
    rows = [quietly(make, corpus_with_folder, packer(31), 5) for make in RECIPES.values()]
    for encoded in rows:
        base = encoded.token_ids
        while isinstance(base.base, np.ndarray):
            base = base.base
        assert isinstance(base, np.memmap)
    assert set(corpus.folder.iterdir()) == before
    assert not list((tmp_path / "rows").iterdir())
    pairs = rows[-1][3:7]
    assert isinstance(pairs, SegmentPairs)
    np.testing.assert_array_equal(pairs.token_ids, rows[-1].token_ids[slice(*rows[-1].sequence_splits[[3, 7]])])


def test_a_corpus_shorter_than_a_row(tmp_path):
    corpus = write_corpus(["w1"], TOKENIZER, tmp_path)
    assert len(pack_documents(corpus, packer(31))) == 0
    row = [TOKENIZER.token_to_id(token) for token in ("[CLS]", "w1", "[SEP]", "[SEP]")]
    assert pack_sentences(corpus, packer(31)).token_ids.tolist() == row


def test_running_text_is_all_tokens_in_order(corpus):
    """Nothing separates documents, and a last sequence of at least two tokens stays."""
    tokens = np.concatenate([shard.token_ids for shard in corpus.shards])
    for length in (7, len(tokens) - 1, len(tokens) - 2):
        rows = pack_running_text(corpus, packer(length))
        count, rest = divmod(len(tokens), length)
        assert rows.lengths.tolist() == [length] * count + [rest] * (rest > 1)
        np.testing.assert_array_equal(rows.token_ids, tokens[: len(rows.token_ids)])


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        iter,
        np.array,
        lambda sentences: np.array(sentences, object),
        lambda sentences: [sentence.encode() for sentence in sentences],
        lambda sentences: np.array([sentence.encode() for sentence in sentences]),
        lambda sentences: [sentences[0].encode(), *sentences[1:]],
    ],
    ids=["list", "tuple", "iterator", "array", "objects", "bytes", "array of bytes", "bytes and strings"],
)
def test_sentences_of_all_types_are_joined_by_spaces(convert):
    documents = [convert(["w1 é", "w2", "w3"]), convert(["w4"]), "w5", b"w6"]
    assert clean_texts(WithSpaces(documents)) == ["w1 é w2 w3", "w4", "w5", "w6"]


def test_invalid_bytes_of_joined_sentences_are_replaced_with_a_warning():
    with collect_warnings() as messages:
        assert clean_texts(WithSpaces([[b"w1\xff", b"w2"], ["w3"]])) == ["w1\ufffd w2", "w3"]
    assert messages == ["1 of 2 texts held invalid UTF-8; it was read as U+FFFD."]


def test_entries_that_are_not_text_are_not_joined():
    assert list(WithSpaces([["w1", None], None])) == [["w1", None], None]


def test_a_lone_separator_is_no_row():
    """Documents have no separator after a full row and before a sentence that fills the next."""
    rows = pack_sentences([["w1 w1 w1"], ["w2 w2 w2"]], packer(5))
    assert rows.lengths.tolist() == [5, 5]


@pytest.mark.parametrize("recipe", ["documents", "full sentences", "document sentences"])
def test_rows_without_a_start_and_with_a_last_token(recipe):
    """The rows hold the same tokens, as both packings have the same number of special tokens."""
    bert_rows, xlnet_rows = (
        RECIPES[recipe](documents(), Preprocessor(TOKENIZER, packing, length), 7)
        for packing, length in (
            (Packing("[CLS]", "[SEP]", ("[SEP]",), segments=True), 17),
            (Packing("", "[SEP]", ("[SEP]",), segments=True, last="[CLS]"), 17),
        )
    )
    start, end = TOKENIZER.token_to_id("[CLS]"), TOKENIZER.token_to_id("[SEP]")
    for bert_row, xlnet_row in zip(split_rows(bert_rows), split_rows(xlnet_rows), strict=True):
        assert bert_row.tolist() == [start, *xlnet_row[:-1].tolist()]
        assert xlnet_row[-2:].tolist() == [end, start]


def split_rows(rows):
    return np.split(rows.token_ids, rows.sequence_splits[1:-1])


@pytest.mark.parametrize("across", [True, False])
def test_no_row_begins_with_the_end_of_a_sentence(across):
    """A sentence that ends at the end of a row has no separator."""
    tokens = [" ".join(["w1"] * n) for n in (4, 1, 8, 5)]
    rows = pack_sentences([[*tokens, "w2"]], packer(5), across)
    start, word, last_word, end = (TOKENIZER.token_to_id(token) for token in ("[CLS]", "w1", "w2", "[SEP]"))
    full = [start] + [word] * 4
    expected = [full, [start, word, end], full, full, full, [start, word, end, last_word, end]]
    assert [rows[i : i + 1].token_ids.tolist() for i in range(6)] == expected
    assert rows[6:].token_ids.tolist() == []


def test_rows_must_have_room_for_a_token():
    for pack, length in ((pack_documents, 2), (pack_sentences, 2), (pack_sentences, 1)):
        with pytest.raises(ValueError, match=f"is {length}, which leaves room for 0 tokens: it must be at least 3"):
            pack([["w1"]], packer(length))
    assert pack_documents([["w1 w2"]], packer(3)).lengths.tolist() == [3, 3, 3]
    assert pack_sentences([["w1 w2"]], packer(3)).lengths.tolist() == [3]


def test_full_sentences_need_little_padding(tmp_path):
    """The batches are those of `fit`, and sentences are as long as in English books: 26 tokens, a few over 100."""
    rng = np.random.default_rng(11)
    lengths = np.clip(rng.lognormal(3.05, 0.65, 9973), 1, 300).astype("int64")
    sentences = ["w7 " * n for n in lengths.tolist()]
    texts = [sentences[i : i + 67] for i in range(0, len(sentences), 67)]
    assert 24 < lengths.mean() < 28
    rows = pack_sentences(write_corpus(texts, TOKENIZER, tmp_path), packer(512))
    batches = LengthBatches(rows.lengths, lambda b, width, rng: len(b) * width, 32, fit_buckets(rows.lengths, 512))
    assert 1 - len(rows.token_ids) / sum(batches.batches()) < 0.02
    full = pack_documents(texts, packer(512))
    assert set(full.lengths) == {512}


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """Memory holds neither all texts nor all tokens or rows."""
    text = [" ".join(WORDS * 20)] * 7
    peaks = {}
    for count in (31, 310):  # ten times as many, since a peak may vary by a quarter after other tests
        tracemalloc.start()
        corpus = write_corpus((text for _ in range(count)), TOKENIZER, tmp_path / str(count), shard_tokens=1 << 16)
        pack_sentences(corpus, packer(512))
        pack_documents(corpus, packer(512))
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[310] < 1.5 * peaks[31], peaks


def test_pairs_take_little_memory(corpus, monkeypatch):
    """Memory holds only the offsets and labels of pairs: their tokens are in a file."""
    peaks = {}
    monkeypatch.setattr(segment_pairing, "_BLOCK_PAIRS", 256)
    for passes in (5, 50):
        tracemalloc.start()
        pairs = quietly(segment_pairs, corpus, packer(31), "nsp", np.random.default_rng(5), passes)
        peaks[len(pairs)] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    (few_pairs, low_peak), (many_pairs, high_peak) = peaks.items()
    assert many_pairs > 7_000
    assert high_peak - low_peak < 60 * (many_pairs - few_pairs), peaks
