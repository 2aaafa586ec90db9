"""Rows out of a tokenized corpus: those of the same documents in memory, little padding, masks as published."""

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
from lmzoo.models import MaskedLM
from lmzoo.registry.family import families
from lmzoo.tasks.base.examples import Examples
from lmzoo.testing import tiny_backbone
from lmzoo.text import LengthBatches, Packing, Preprocessor, TextWarning, WordPieceTokenizer
from lmzoo.text.batching import fit_buckets
from lmzoo.text.validate_text import collect_warnings

WORDS = [f"w{i}" for i in range(53)]
TOKENIZER = WordPieceTokenizer.of_words(WORDS, 59)
RECIPES = {
    "documents": lambda source, pack, seed: pack_documents(source, pack),
    "running text": lambda source, pack, seed: pack_running_text(source, pack),
    "full sentences": lambda source, pack, seed: pack_sentences(source, pack),
    "document sentences": lambda source, pack, seed: pack_sentences(source, pack, across_documents=False),
    "nsp": lambda source, pack, seed: segment_pairs(source, pack, "nsp", np.random.default_rng(seed), 2),
    "sop": lambda source, pack, seed: segment_pairs(source, pack, "sop", np.random.default_rng(seed), 2),
}


def quietly(make, *arguments):
    """Without the warning of documents that are one sentence."""
    with collect_warnings():
        return make(*arguments)


def packer(length, tokenizer=TOKENIZER):
    return Preprocessor(tokenizer, Packing("[CLS]", "[SEP]", ("[SEP]",), segments=True), length)


def documents(count=61, longest=12, seed=3):
    rng = np.random.default_rng(seed)
    sentences = [" ".join(rng.choice(WORDS, n)) for n in range(1, longest) for _ in range(13)]
    return [list(rng.choice(sentences, rng.integers(1, 14))) for _ in range(count)]


def arrays_of(rows):
    return {name: value for name, value in vars(rows).items() if isinstance(value, np.ndarray)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Its shards end within rows and between pairs' segments."""
    return write_corpus(documents(), TOKENIZER, tmp_path_factory.mktemp("corpus"), shard_tokens=211)


@pytest.mark.parametrize("length", [7, 31])
@pytest.mark.parametrize("recipe", RECIPES)
def test_rows_are_those_of_the_documents(corpus, recipe, length):
    assert len(corpus.shards) > 7
    make = RECIPES[recipe]
    expected, found = (arrays_of(quietly(make, source, packer(length), 5)) for source in (documents(), corpus))
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
        assert (array.dtype == np.uint16) if name == "token_ids" else (array.dtype == expected[name].dtype)


@pytest.mark.parametrize("recipe", ["nsp", "sop"])
def test_the_generator_says_it_all(corpus, recipe):
    first, again, other = (quietly(RECIPES[recipe], corpus, packer(31), seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.token_ids, again.token_ids)
    np.testing.assert_array_equal(first.labels, again.labels)
    assert len(first.token_ids) != len(other.token_ids) or (first.token_ids != other.token_ids).any()


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_empty_leaves_no_trace(recipe, tmp_path):
    """In memory, in a corpus, or left out by hand: the rows are the same."""
    clean = documents(count=23)
    holes = [[], *clean[:5], ["", " "], [clean[5][0], "", *clean[5][1:], " "], *clean[6:], [""]]
    with pytest.warns(TextWarning, match="^3 of 26 documents held no tokens and were left out"):
        corpus = write_corpus(holes, TOKENIZER, tmp_path, shard_tokens=101)
    expected = arrays_of(quietly(RECIPES[recipe], clean, packer(13), 5))
    with pytest.warns(TextWarning, match="^3 of 26 documents held no tokens and were left out") as warned:
        found = arrays_of(RECIPES[recipe](holes, packer(13), 5))
    assert len(warned) == 1
    stored = arrays_of(quietly(RECIPES[recipe], corpus, packer(13), 5))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        np.testing.assert_array_equal(stored[name], array, err_msg=name)


def test_rows_are_in_a_file_that_leaves_nothing_behind(corpus, tmp_path):
    before = set(corpus.folder.iterdir())
    elsewhere = TokenCorpus(corpus.folder, sequences_folder=tmp_path / "rows")
    with pytest.raises(FileNotFoundError, match="rows"):
        pack_sentences(elsewhere, packer(31))
    (tmp_path / "rows").mkdir()
    rows = [quietly(make, elsewhere, packer(31), 5) for make in RECIPES.values()]
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


def test_too_little_for_a_row(tmp_path):
    corpus = write_corpus(["w1"], TOKENIZER, tmp_path)
    assert len(pack_documents(corpus, packer(31))) == 0
    row = [TOKENIZER.token_to_id(token) for token in ("[CLS]", "w1", "[SEP]", "[SEP]")]
    assert pack_sentences(corpus, packer(31)).token_ids.tolist() == row


def test_running_text_is_all_tokens_in_order(corpus):
    """There is nothing between documents; of the last sequence, at least two tokens are kept."""
    tokens = np.concatenate([shard.token_ids for shard in corpus.shards])
    for length in (7, len(tokens) - 1, len(tokens) - 2):
        rows = pack_running_text(corpus, packer(length))
        count, rest = divmod(len(tokens), length)
        assert rows.lengths.tolist() == [length] * count + [rest] * (rest > 1)
        np.testing.assert_array_equal(rows.token_ids, tokens[: len(rows.token_ids)])


def test_a_lone_separator_is_no_row():
    """After a full row, and before a sentence that fills the next, nothing stands between documents."""
    rows = pack_sentences([["w1 w1 w1"], ["w2 w2 w2"]], packer(5))
    assert rows.lengths.tolist() == [5, 5]


@pytest.mark.parametrize("recipe", ["documents", "full sentences", "document sentences"])
def test_rows_without_a_start_and_with_a_last_token(recipe):
    """They are the same tokens, for as much room."""
    usual, other = (
        RECIPES[recipe](documents(), Preprocessor(TOKENIZER, packing, length), 7)
        for packing, length in (
            (Packing("[CLS]", "[SEP]", ("[SEP]",), segments=True), 17),
            (Packing("", "[SEP]", ("[SEP]",), segments=True, last="[CLS]"), 17),
        )
    )
    start, end = TOKENIZER.token_to_id("[CLS]"), TOKENIZER.token_to_id("[SEP]")
    for one, two in zip(split_rows(usual), split_rows(other), strict=True):
        assert one.tolist() == [start, *two[:-1].tolist()]
        assert two[-2:].tolist() == [end, start]


def split_rows(rows):
    return np.split(rows.token_ids, rows.sequence_splits[1:-1])


@pytest.mark.parametrize("across", [True, False])
def test_no_row_begins_with_the_end_of_a_sentence(across):
    """One that is as long as a row, or several, goes without."""
    tokens = [" ".join(["w1"] * n) for n in (4, 1, 8, 5)]
    rows = pack_sentences([[*tokens, "w2"]], packer(5), across)
    start, word, other, end = (TOKENIZER.token_to_id(token) for token in ("[CLS]", "w1", "w2", "[SEP]"))
    full = [start] + [word] * 4
    expected = [full, [start, word, end], full, full, full, [start, word, end, other, end]]
    assert [rows[i : i + 1].token_ids.tolist() for i in range(6)] == expected
    assert rows[6:].token_ids.tolist() == []


def test_rows_without_room():
    for pack, length in ((pack_documents, 2), (pack_sentences, 2), (pack_sentences, 1)):
        with pytest.raises(ValueError, match=f"is {length}, which leaves room for 0 tokens: it must be at least 3"):
            pack([["w1"]], packer(length))
    assert pack_documents([["w1 w2"]], packer(3)).lengths.tolist() == [3, 3, 3]
    assert pack_sentences([["w1 w2"]], packer(3)).lengths.tolist() == [3]


def test_padding_of_full_sentences(tmp_path):
    """In the batches of `fit`, with sentences as long as those of English books (26 tokens, a few of over 100)."""
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
    """Four times the documents, hardly more memory at the peak: neither texts, tokens nor rows are held."""
    text = [" ".join(WORDS * 20)] * 7
    peaks = {}
    for count in (31, 124):
        tracemalloc.start()
        corpus = write_corpus((text for _ in range(count)), TOKENIZER, tmp_path / str(count), shard_tokens=1 << 16)
        pack_sentences(corpus, packer(512))
        pack_documents(corpus, packer(512))
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[124] < 1.2 * peaks[31], peaks


def test_memory_of_pairs(corpus, monkeypatch):
    """Where they are and what the result says of them: a row itself is in a file."""
    peaks = {}
    monkeypatch.setattr(segment_pairing, "_BLOCK_PAIRS", 256)
    for passes in (5, 50):
        tracemalloc.start()
        pairs = quietly(segment_pairs, corpus, packer(31), "nsp", np.random.default_rng(5), passes)
        peaks[len(pairs)] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    (few, least), (many, most) = peaks.items()
    assert many > 7_000
    assert most - least < 60 * (many - few), peaks


@pytest.mark.parametrize("name", ["bert", "roberta", "albert"])
def test_masks(name, tmp_path):
    """15% of the tokens; of these 80% masked, 10% replaced, 10% as they were (Devlin et al., 2019)."""
    family = families()[name]
    backbone = tiny_backbone(family, max_sequence_length=67)
    tokenizer = family.tokenizer.of_words(WORDS, backbone.config.vocabulary_size)
    corpus = write_corpus(documents(count=173), tokenizer, tmp_path)
    task = MaskedLM(backbone, Preprocessor(tokenizer, family.packing, 67))
    rows = pack_sentences(corpus, task.preprocessor)
    draws = []
    for seed in range(2):
        features, targets, weights = task.make_batch(
            Examples(rows), np.arange(len(rows)), 67, np.random.default_rng(seed)
        )
        chosen = weights > 0
        ids = np.take_along_axis(features["token_ids"], features["mask_positions"], axis=1)[chosen]
        draws.append([chosen.sum(), (ids == tokenizer.mask_id).sum(), (ids == targets[chosen]).sum()])
    count, masked, same = np.sum(draws, axis=0)
    total = 2 * len(rows.token_ids)
    assert count > 1500
    assert abs(count / total - 0.15) < 0.005
    size = backbone.config.vocabulary_size
    for found, share in ((masked, 0.8 + 0.1 / size), (same, 0.1 + 0.1 / size)):
        assert abs(found - count * share) < 4 * (count * share * (1 - share)) ** 0.5
