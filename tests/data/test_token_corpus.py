"""The tokenized corpus: the content of its files, runs that are resumed, and errors for damaged files."""

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
from lmzoo.text import BytePairTokenizer, SentencePieceTokenizer, TextWarning, WordPieceTokenizer
from tests.data.small_corpora import TOKENIZER, WORDS, files, packer

SHARD_TOKENS = 101


def documents(count=41, seed=3):
    rng = np.random.default_rng(seed)
    return [[" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in range(rng.integers(1, 8))] for _ in range(count)]


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(documents(), TOKENIZER, tmp_path / "corpus", SHARD_TOKENS)


def begin_corpus(documents, folder, tokenizer=TOKENIZER, shard_tokens=SHARD_TOKENS):
    """Write the beginning of a corpus, and stop by Ctrl-C."""

    def stopped():
        yield from documents
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(stopped(), tokenizer, folder, shard_tokens)


# === Writing ===


@pytest.mark.parametrize("kind", [WordPieceTokenizer, BytePairTokenizer, SentencePieceTokenizer])
def test_a_corpus_holds_the_ids_of_the_documents(kind, tmp_path):
    tokenizer = kind.of_words(WORDS, 331)
    write_corpus((document for document in documents()), tokenizer, tmp_path / "corpus", SHARD_TOKENS)
    corpus = TokenCorpus(tmp_path / "corpus")
    rows = [
        [shard.token_ids[a:b].tolist() for a, b in itertools.pairwise(shard.sentences(i))]
        for shard in corpus.shards
        for i in range(len(shard))
    ]
    assert rows == [tokenizer.tokenize(document) for document in documents()]
    assert len(corpus) == 41
    assert corpus.num_sentences == sum(map(len, documents()))
    assert corpus.num_tokens == sum(len(ids) for document in rows for ids in document)
    assert all(len(shard.token_ids) >= SHARD_TOKENS for shard in corpus.shards[:-1])
    assert len(corpus.shards) > 7
    assert corpus.tokenizer.vocabulary == tokenizer.vocabulary
    assert type(corpus.tokenizer) is kind
    corpus.check_tokenizer(tokenizer)
    corpus.verify()


def test_files_are_mapped_with_two_bytes_an_id(corpus):
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


def test_a_finished_corpus_is_not_written_again_and_files_repeat(corpus, tmp_path):
    def unread():
        raise AssertionError
        yield

    before = files(corpus.folder)
    assert len(write_corpus(unread(), TOKENIZER, corpus.folder)) == 41
    write_corpus(iter(documents()), TOKENIZER, tmp_path / "other", SHARD_TOKENS)
    assert files(corpus.folder) == before == files(tmp_path / "other")


def test_empty_documents_are_counted(tmp_path):
    texts = ["w1", [], [""], ["w2 w3", " ", "w4"], " \n", b"w5", "w\ud800"]
    with pytest.warns(TextWarning) as caught:
        corpus = write_corpus(texts, TOKENIZER, tmp_path)
    assert [str(warning.message)[:40] for warning in caught] == [
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
    """The count includes shards of an earlier run; an unknown word is no special token."""
    tokenizer = kind.of_words(WORDS, 331)
    texts = [["w1", f"w2 {tokenizer.mask_token} 東"], ["w3"], [f"{tokenizer.mask_token} {tokenizer.mask_token}"]]
    begin_corpus(texts[:2], tmp_path, tokenizer, 1)
    with pytest.warns(TextWarning, match=r"^3 special tokens, such as \S+, are spelled out in the doc") as caught:
        corpus = write_corpus(texts, tokenizer, tmp_path, shard_tokens=1)
    assert len(caught) == 1
    assert sum((shard.token_ids == tokenizer.mask_id).sum() for shard in corpus.shards) == 3


def test_reading_waits_for_the_tokenizer(tmp_path, monkeypatch):
    """A quick disk would otherwise fill the memory with texts."""
    ahead, tokenized = [], []
    tokenize = WordPieceTokenizer.tokenize

    def tokenize_slowly(self, texts):
        time.sleep(0.01)
        tokenized.append(texts)
        return tokenize(self, texts)

    def watch():
        for num_read, document in enumerate(documents()):
            ahead.append(num_read - len(tokenized))
            yield document

    monkeypatch.setattr(WordPieceTokenizer, "tokenize", tokenize_slowly)
    write_corpus(watch(), TOKENIZER, tmp_path, shard_tokens=1)  # so that a batch is a document
    assert max(ahead) <= 4


# === Resuming ===


@pytest.mark.parametrize("stop", [0, 1, 17, 40, 41])
def test_a_stopped_run_is_resumed(corpus, stop, tmp_path, monkeypatch):
    begin_corpus(documents()[:stop], tmp_path / "resumed")
    with pytest.raises(ValueError, match="is unfinished: continue it by `write_corpus`"):
        TokenCorpus(tmp_path / "resumed")
    finished = set(files(tmp_path / "resumed"))
    assert finished < set(files(corpus.folder))
    tokenized = []
    tokenize = WordPieceTokenizer.tokenize
    monkeypatch.setattr(
        WordPieceTokenizer, "tokenize", lambda self, texts: tokenized.extend(texts) or tokenize(self, texts)
    )
    write_corpus(iter(documents()), TOKENIZER, tmp_path / "resumed", SHARD_TOKENS)
    assert files(tmp_path / "resumed") == files(corpus.folder)
    shards = [shard for i, shard in enumerate(read_index(corpus)["shards"]) if f"shard-{i:05}.bin" in finished]
    num_finished = sum(shard["sentences"] for shard in shards)
    assert len(tokenized) == corpus.num_sentences - num_finished
    assert num_finished > 0 or stop < 17


def read_index(corpus):
    return json.loads((corpus.folder / "corpus.json").read_text())


def test_other_documents_are_refused(tmp_path):
    begin_corpus(documents()[:37], tmp_path)
    before = files(tmp_path)
    altered = documents()
    altered[3][0] += " w1"
    for texts in (altered, documents()[:3], documents()[1:], [[" ".join(document)] for document in documents()]):
        with pytest.raises(ValueError, match=r"was begun with other documents than these"):
            write_corpus(texts, TOKENIZER, tmp_path, SHARD_TOKENS)
    assert files(tmp_path) == before


def test_the_same_text_in_other_sentences_is_refused(tmp_path):
    variants = [
        [["w1", "w2"]],
        [["w1w", "2"]],
        [["w1\nw2"]],
        [["w1"], ["w2"]],
        [["w1", "w2", ""]],
        [["w1w2"]],
        [["w1"], [], ["w2"]],
    ]
    for i, (first, second) in enumerate(itertools.permutations(variants, 2)):
        begin_corpus([*first, *documents()[:4]], tmp_path / str(i), shard_tokens=1)
        with pytest.raises(ValueError, match=r"was begun with other documents than these"):
            write_corpus([*second, *documents()], TOKENIZER, tmp_path / str(i), 1)


def test_only_a_finished_corpus_of_an_earlier_version_can_be_used(corpus):
    stored = read_index(corpus)
    for shard in stored["shards"]:
        shard["source"] = shard.pop("digest")
        del shard["crc32"]
    path = corpus.folder / "corpus.json"
    path.write_text(json.dumps(stored))
    assert len(write_corpus(documents(), TOKENIZER, corpus.folder)) == len(TokenCorpus(corpus.folder)) == 41
    expected = pack_documents(corpus, packer())
    assert pack_documents(TokenCorpus(corpus.folder), packer()).token_ids.tolist() == expected.token_ids.tolist()
    flip_bit(corpus.folder / "shard-00002.bin", 50)
    with pytest.raises(ValueError, match=r"shard-00002\.bin was altered: its sha256 is \w+, not"):
        pack_documents(TokenCorpus(corpus.folder), packer())
    flip_bit(corpus.folder / "shard-00002.bin", 50)
    path.write_text(json.dumps({**stored, "complete": False}))
    with pytest.raises(ValueError, match="was begun by an older version of lmzoo and cannot be continued"):
        write_corpus(documents(), TOKENIZER, corpus.folder)


# === Errors ===


def test_another_tokenizer_is_refused(corpus):
    tokenizers = [
        WordPieceTokenizer.of_words(WORDS[::-1], 59),
        WordPieceTokenizer(TOKENIZER.vocabulary, lowercase=False),
        BytePairTokenizer.of_words(WORDS, 307),
    ]
    for tokenizer in tokenizers:
        with pytest.raises(ValueError, match="was made with another tokenizer, a lmzoo>WordPieceTokenizer"):
            write_corpus(documents(), tokenizer, corpus.folder)
    for pack in (pack_documents, pack_sentences, lambda *a: segment_pairs(*a, "nsp", np.random.default_rng(1))):
        with pytest.raises(ValueError, match="was made with another tokenizer"):
            pack(corpus, packer(tokenizer=tokenizers[0]))
    pack_documents(corpus, packer(tokenizer=corpus.tokenizer))


def test_a_tokenizer_with_other_tokens_is_stored(tmp_path):
    tokenizer = WordPieceTokenizer.of_words(["a", "b"], 17, other_tokens=["[E]"])
    corpus = write_corpus([["a b", "b"], ["a"]], tokenizer, tmp_path / "corpus")
    assert corpus.tokenizer.other_tokens == ("[E]",)
    assert len(pack_sentences(corpus, packer(tokenizer=tokenizer)))
    assert write_corpus([["a b", "b"], ["a"]], tokenizer, tmp_path / "corpus").num_tokens == corpus.num_tokens


def test_truncated_altered_and_missing_files_are_named(corpus):
    path = corpus.folder / "shard-00002.bin"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    for open_corpus in (TokenCorpus, lambda folder: write_corpus(documents(), TOKENIZER, folder)):
        with pytest.raises(
            ValueError, match=rf"shard-00002\.bin has {len(content) // 2} bytes and should have {len(content)}"
        ):
            open_corpus(corpus.folder)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"shard-00002\.bin was altered"):
        TokenCorpus(corpus.folder).verify()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"shard-00002\.bin is missing"):
        TokenCorpus(corpus.folder)


def flip_bit(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_altered_blocks_are_never_read(tmp_path, monkeypatch):
    """A wrong bit anywhere in a file, or a block of zeros, is an error with its position."""
    monkeypatch.setattr(corpus_index, "BLOCK", 64)
    monkeypatch.setattr(token_corpus, "BLOCK", 64)
    folder = write_corpus(documents(), TOKENIZER, tmp_path, SHARD_TOKENS).folder
    path = folder / "shard-00002.bin"
    content = path.read_bytes()
    assert len(content) > 3 * 64
    for position in range(0, len(content), 7):
        flip_bit(path, position)
        with pytest.raises(
            ValueError, match=rf"02\.bin was altered: the checksum of the 64 bytes from {position // 64 * 64} "
        ):
            TokenCorpus(folder).shards[2]
        path.write_bytes(content)
    path.write_bytes(content[:-64] + bytes(64))
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


def test_wrong_descriptions_of_a_corpus(corpus, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no corpus \(corpus\.json is missing\)"):
        TokenCorpus(tmp_path)
    path, stored = corpus.folder / "corpus.json", read_index(corpus)
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
