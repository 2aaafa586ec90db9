"""The tokenized corpus: what its files hold, continuing after a stop, and errors for damaged files."""

from __future__ import annotations

import itertools
import json
import time

import numpy as np
import pytest

from lmzoo.data.corpora import (
    TokenCorpus,
    corpus_index,
    pack_documents,
    pack_sentences,
    segment_pairs,
    token_corpus,
    write_corpus,
)
from lmzoo.text import BytePairTokenizer, Packing, Preprocessor, SentencePieceTokenizer, TextWarning, WordPieceTokenizer

WORDS = [f"w{i}" for i in range(53)]
TOKENIZER = WordPieceTokenizer.of_words(WORDS, 59)
LEAST = 101  # tokens of a shard


def documents(count=41, seed=3):
    rng = np.random.default_rng(seed)
    return [[" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in range(rng.integers(1, 8))] for _ in range(count)]


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(documents(), TOKENIZER, tmp_path / "corpus", LEAST)


def packer(tokenizer=TOKENIZER, length=23):
    return Preprocessor(tokenizer, Packing("[CLS]", "[SEP]", ("[SEP]",), segments=True), length)


# === What is written ===


@pytest.mark.parametrize("kind", [WordPieceTokenizer, BytePairTokenizer, SentencePieceTokenizer])
def test_it_holds_what_was_tokenized(kind, tmp_path):
    tokenizer = kind.of_words(WORDS, 331)
    write_corpus((document for document in documents()), tokenizer, tmp_path / "corpus", LEAST)
    corpus = TokenCorpus(tmp_path / "corpus")
    found = [
        [shard.token_ids[a:b].tolist() for a, b in itertools.pairwise(shard.sentences(i))]
        for shard in corpus.shards
        for i in range(len(shard))
    ]
    assert found == [tokenizer.tokenize(document) for document in documents()]
    assert len(corpus) == 41
    assert corpus.num_sentences == sum(map(len, documents()))
    assert corpus.num_tokens == sum(len(ids) for document in found for ids in document)
    assert all(len(shard.token_ids) >= LEAST for shard in corpus.shards[:-1])
    assert len(corpus.shards) > 7
    assert corpus.tokenizer.vocabulary == tokenizer.vocabulary
    assert type(corpus.tokenizer) is kind
    corpus.check_tokenizer(tokenizer)
    corpus.verify()


def test_files_are_mapped_and_small(corpus):
    def base_of(array):
        while isinstance(array.base, np.ndarray):
            array = array.base
        return array

    for shard in corpus.shards:
        assert shard.token_ids.dtype == np.uint16
        assert all(isinstance(base_of(array), np.memmap) for array in (shard.token_ids, shard.sentence_splits))
        with pytest.raises(ValueError, match="read-only"):
            shard.token_ids[0] = 1


@pytest.mark.parametrize(("size", "dtype"), [(1 << 16, "uint16"), ((1 << 16) + 1, "int32")])
def test_the_highest_id_fits(size, dtype, tmp_path):
    tokenizer = WordPieceTokenizer.of_words(WORDS, size)
    last = tokenizer.id_to_token(size - 1)
    corpus = write_corpus([[last]], tokenizer, tmp_path)
    assert corpus.shards[0].token_ids.dtype == dtype
    assert corpus.shards[0].token_ids.tolist() == [size - 1]


def test_nothing_is_written_twice_and_all_the_same_each_time(corpus, tmp_path):
    def unread():
        raise AssertionError
        yield

    before = files(corpus.folder)
    assert len(write_corpus(unread(), TOKENIZER, corpus.folder)) == 41
    write_corpus(iter(documents()), TOKENIZER, tmp_path / "other", LEAST)
    assert files(corpus.folder) == before == files(tmp_path / "other")


def test_empty_documents_are_counted(tmp_path):
    texts = ["w1", [], [""], ["w2 w3", " ", "w4"], " \n", b"w5", "w\ud800"]
    with pytest.warns(TextWarning) as warned:
        corpus = write_corpus(texts, TOKENIZER, tmp_path)
    assert [str(warning.message)[:40] for warning in warned] == [
        "3 of 7 documents held no tokens and were",
        "1 documents held invalid UTF-8; it was r",
    ]
    assert (len(corpus), corpus.num_sentences, corpus.num_tokens) == (4, 5, 6)
    with pytest.raises(ValueError, match="There are no tokens in these documents"):
        write_corpus([[], [""]], TOKENIZER, tmp_path / "empty")
    with pytest.raises(TypeError, match=r"`documents\[2\]\[1\]` must be a string, got 7"):
        write_corpus(["w1", "w2", ["w3", 7]], TOKENIZER, tmp_path / "wrong")


@pytest.mark.parametrize("kind", [WordPieceTokenizer, BytePairTokenizer, SentencePieceTokenizer])
def test_special_tokens_in_the_text_are_counted(kind, tmp_path):
    """Those of parts that were written before, too; an unknown word is none."""
    tokenizer = kind.of_words(WORDS, 331)
    texts = [["w1", f"w2 {tokenizer.mask_token} 東"], ["w3"], [f"{tokenizer.mask_token} {tokenizer.mask_token}"]]

    def stopped():
        yield from texts[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(stopped(), tokenizer, tmp_path, shard_tokens=1)
    with pytest.warns(TextWarning, match=r"^3 special tokens, such as \S+, are spelled out in the doc") as warned:
        corpus = write_corpus(texts, tokenizer, tmp_path, shard_tokens=1)
    assert len(warned) == 1
    assert sum((shard.token_ids == tokenizer.mask_id).sum() for shard in corpus.shards) == 3


def test_reading_waits_for_the_tokenizer(tmp_path, monkeypatch):
    """Or a quick disk would fill the memory with texts."""
    ahead, done = [], []
    tokenize = WordPieceTokenizer.tokenize

    def slowly(self, texts):
        time.sleep(0.01)
        done.append(1)
        return tokenize(self, texts)

    def watched():
        for read, document in enumerate(documents()):
            ahead.append(read - len(done))
            yield document

    monkeypatch.setattr(WordPieceTokenizer, "tokenize", slowly)
    write_corpus(watched(), TOKENIZER, tmp_path, shard_tokens=1)  # so that a batch is a document
    assert max(ahead) <= 4


# === Going on ===


@pytest.mark.parametrize("stop", [0, 1, 17, 40, 41])
def test_a_run_that_was_stopped_goes_on(corpus, stop, tmp_path, monkeypatch):
    def stopped():
        yield from documents()[:stop]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(stopped(), TOKENIZER, tmp_path / "again", LEAST)
    with pytest.raises(ValueError, match="is unfinished: continue it by `write_corpus`"):
        TokenCorpus(tmp_path / "again")
    there = set(files(tmp_path / "again"))
    assert there < set(files(corpus.folder))
    tokenized = []
    tokenize = WordPieceTokenizer.tokenize
    monkeypatch.setattr(
        WordPieceTokenizer, "tokenize", lambda self, texts: tokenized.extend(texts) or tokenize(self, texts)
    )
    write_corpus(iter(documents()), TOKENIZER, tmp_path / "again", LEAST)
    assert files(tmp_path / "again") == files(corpus.folder)
    done = sum(shard["sentences"] for i, shard in enumerate(index(corpus)["shards"]) if f"shard-{i:05}.bin" in there)
    assert len(tokenized) == corpus.num_sentences - done
    assert done > 0 or stop < 17


def index(corpus):
    return json.loads((corpus.folder / "corpus.json").read_text())


def test_only_with_the_same_documents(tmp_path):
    def stopped(texts):
        yield from texts
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(stopped(documents()[:37]), TOKENIZER, tmp_path, LEAST)
    before = files(tmp_path)
    altered = documents()
    altered[3][0] += " w1"
    for others in (altered, documents()[:3], documents()[1:], [[" ".join(document)] for document in documents()]):
        with pytest.raises(ValueError, match=r"was begun with other documents than these"):
            write_corpus(others, TOKENIZER, tmp_path, LEAST)
    assert files(tmp_path) == before


def test_sentences_are_told_apart(tmp_path):
    """Documents that are the same text, parted otherwise, are others."""
    variants = [
        [["w1", "w2"]],
        [["w1w", "2"]],
        [["w1\nw2"]],
        [["w1"], ["w2"]],
        [["w1", "w2", ""]],
        [["w1w2"]],
        [["w1"], [], ["w2"]],
    ]

    def stopped(texts):
        yield from texts
        raise KeyboardInterrupt

    for i, (begun, other) in enumerate(itertools.permutations(variants, 2)):
        with pytest.raises(KeyboardInterrupt):
            write_corpus(stopped([*begun, *documents()[:4]]), TOKENIZER, tmp_path / str(i), 1)
        with pytest.raises(ValueError, match=r"was begun with other documents than these"):
            write_corpus([*other, *documents()], TOKENIZER, tmp_path / str(i), 1)


def test_an_earlier_version(corpus):
    """A finished corpus is opened; an unfinished one is not continued."""
    stored = index(corpus)
    for shard in stored["shards"]:
        shard["source"] = shard.pop("digest")
        del shard["crc32"]
    path = corpus.folder / "corpus.json"
    path.write_text(json.dumps(stored))
    assert len(write_corpus(documents(), TOKENIZER, corpus.folder)) == len(TokenCorpus(corpus.folder)) == 41
    expected = pack_documents(corpus, packer())
    assert pack_documents(TokenCorpus(corpus.folder), packer()).token_ids.tolist() == expected.token_ids.tolist()
    flip(corpus.folder / "shard-00002.bin", 50)
    with pytest.raises(ValueError, match=r"shard-00002\.bin was altered: its sha256 is \w+, not"):
        pack_documents(TokenCorpus(corpus.folder), packer())
    flip(corpus.folder / "shard-00002.bin", 50)
    path.write_text(json.dumps({**stored, "complete": False}))
    with pytest.raises(ValueError, match="was begun by an older version of lmzoo and cannot be continued"):
        write_corpus(documents(), TOKENIZER, corpus.folder)


# === What is wrong ===


def test_another_tokenizer(corpus):
    others = [
        WordPieceTokenizer.of_words(WORDS[::-1], 59),
        WordPieceTokenizer(TOKENIZER.vocabulary, lowercase=False),
        BytePairTokenizer.of_words(WORDS, 307),
    ]
    for other in others:
        with pytest.raises(ValueError, match="was made with another tokenizer, a lmzoo>WordPieceTokenizer"):
            write_corpus(documents(), other, corpus.folder)
    for pack in (pack_documents, pack_sentences, lambda *a: segment_pairs(*a, "nsp", np.random.default_rng(1))):
        with pytest.raises(ValueError, match="was made with another tokenizer"):
            pack(corpus, packer(others[0]))
    pack_documents(corpus, packer(corpus.tokenizer))


def test_a_tokenizer_with_tokens_of_its_own(tmp_path):
    tokenizer = WordPieceTokenizer.of_words(["a", "b"], 17, other_tokens=["[E]"])
    corpus = write_corpus([["a b", "b"], ["a"]], tokenizer, tmp_path / "it")
    assert corpus.tokenizer.other_tokens == ("[E]",)
    assert len(pack_sentences(corpus, packer(tokenizer)))
    assert write_corpus([["a b", "b"], ["a"]], tokenizer, tmp_path / "it").num_tokens == corpus.num_tokens


def test_a_file_cut_in_half(corpus):
    path = corpus.folder / "shard-00002.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    for again in (TokenCorpus, lambda folder: write_corpus(documents(), TOKENIZER, folder)):
        with pytest.raises(
            ValueError, match=rf"shard-00002\.bin has {len(whole) // 2} bytes and should have {len(whole)}"
        ):
            again(corpus.folder)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"shard-00002\.bin was altered"):
        TokenCorpus(corpus.folder).verify()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"shard-00002\.bin is missing"):
        TokenCorpus(corpus.folder)


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_other_text_is_never_read(tmp_path, monkeypatch):
    """A bit anywhere in a file, or a block of zeros, is an error that says where."""
    monkeypatch.setattr(corpus_index, "BLOCK", 64)
    monkeypatch.setattr(token_corpus, "BLOCK", 64)
    folder = write_corpus(documents(), TOKENIZER, tmp_path, LEAST).folder
    path = folder / "shard-00002.bin"
    whole = path.read_bytes()
    assert len(whole) > 3 * 64
    for place in range(0, len(whole), 7):
        flip(path, place)
        with pytest.raises(
            ValueError, match=rf"02\.bin was altered: the checksum of the 64 bytes from {place // 64 * 64} "
        ):
            TokenCorpus(folder).shards[2]
        path.write_bytes(whole)
    path.write_bytes(whole[:-64] + bytes(64))
    for use in (
        lambda corpus: pack_documents(corpus, packer()),
        lambda corpus: pack_sentences(corpus, packer()),
        lambda corpus: segment_pairs(corpus, packer(), "sop", np.random.default_rng(1)),
        lambda corpus: corpus.shards[1:],
    ):
        with pytest.raises(ValueError, match=r"shard-00002\.bin was altered"):
            use(TokenCorpus(folder))
    corpus = TokenCorpus(folder)
    assert len(corpus.shards[:2]) == 2
    assert len(corpus.shards[-1])


def test_files_are_checked_once(corpus, monkeypatch):
    checked = []
    monkeypatch.setattr(
        token_corpus, "compute_checksums", lambda content: checked.append(1) or corpus_index.compute_checksums(content)
    )
    for _ in range(2):
        pack_sentences(corpus, packer())
    assert len(checked) == len(corpus.shards)


def test_no_corpus(corpus, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no corpus \(corpus\.json is missing\)"):
        TokenCorpus(tmp_path)
    path, stored = corpus.folder / "corpus.json", index(corpus)
    for content, message in (
        ("{", "does not describe a corpus"),
        ("[]", "does not describe a corpus"),
        (json.dumps({**stored, "format": 2}), "is of format 2, this lmzoo reads format 1"),
        (json.dumps({**stored, "color": "red"}), "does not describe a corpus"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            TokenCorpus(corpus.folder)
    path.write_text(json.dumps({**stored, "tokenizer": {**stored["tokenizer"], "name": "lmzoo>Preprocessor"}}))
    with pytest.raises(ValueError, match="does not name a tokenizer of lmzoo"):
        _ = TokenCorpus(corpus.folder).tokenizer
