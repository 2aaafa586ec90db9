"""Files of word vectors: gensim's, files that gensim reads, and damaged ones."""

from __future__ import annotations

import gzip
import logging
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmzoo.static_vectors import Subwords, VectorTable, read_vectors
from lmzoo.static_vectors.subwords import hash_ngrams
from lmzoo.static_vectors.vector_files import FORMATS, write_vectors
from lmzoo.text import TextWarning

WORDS = ["film", "the", "naïve", "日本", "n't", ",", "1.5", "straße"]
UNKNOWN = ["films", "a", "", "本日x", "'"]


def make_table(with_subwords: bool = False) -> VectorTable:
    rng = np.random.default_rng(13)
    vectors = rng.normal(size=(len(WORDS), 5)).astype("float32")
    vectors[1] = [0, 1e-30, -1.5e20, 1 / 3, 7]
    buckets = rng.normal(size=(101, 5)).astype("float32")
    return VectorTable(WORDS, vectors, Subwords(3, 5, buckets) if with_subwords else None)


@pytest.fixture
def gensim() -> Any:
    logging.getLogger("gensim").setLevel(logging.CRITICAL)
    return pytest.importorskip("gensim")


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("format", FORMATS)
def test_files_round_trip(format: str, suffix: str, tmp_path: Path) -> None:
    table = make_table(with_subwords=format == "fasttext")
    path = tmp_path / "vectors"
    write_vectors(path, table, format)
    if suffix:
        compressed = tmp_path / "vectors.gz"
        compressed.write_bytes(gzip.compress(path.read_bytes()))
        path = compressed
    loaded = read_vectors(path)
    assert loaded.words == WORDS
    if format != "fasttext":
        np.testing.assert_array_equal(loaded.vectors, table.vectors)
        return
    rows = [0, *range(2, len(WORDS))]
    np.testing.assert_allclose(loaded.vectors[rows], table.vectors[rows], atol=1e-6)
    assert (loaded.subwords.min_length, loaded.subwords.max_length) == (3, 5)
    np.testing.assert_array_equal(loaded.subwords.vectors, table.subwords.vectors)
    assert isinstance(loaded.subwords.vectors.base, np.memmap) == (not suffix)


@pytest.mark.parametrize("binary", [False, True])
def test_gensims_word2vec_files_in_both_directions(gensim: Any, binary: bool, tmp_path: Path) -> None:
    table = make_table()
    vectors = gensim.models.KeyedVectors(5)
    vectors.add_vectors(WORDS, table.vectors)
    vectors.save_word2vec_format(str(tmp_path / "gensim"), binary=binary)
    loaded = read_vectors(tmp_path / "gensim")
    assert loaded.words == vectors.index_to_key
    expected = gensim.models.KeyedVectors.load_word2vec_format(str(tmp_path / "gensim"), binary=binary)
    np.testing.assert_array_equal(loaded.vectors, expected.vectors)
    write_vectors(tmp_path / "lmzoo", table, "word2vec_binary" if binary else "word2vec")
    loaded = gensim.models.KeyedVectors.load_word2vec_format(str(tmp_path / "lmzoo"), binary=binary)
    assert loaded.index_to_key == WORDS
    np.testing.assert_array_equal(loaded.vectors, table.vectors)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # gensim leaves the file open
def test_gensim_reads_glove_files(gensim: Any, tmp_path: Path) -> None:
    table = make_table()
    write_vectors(tmp_path / "glove.txt", table, "glove")
    expected = gensim.models.KeyedVectors.load_word2vec_format(str(tmp_path / "glove.txt"), no_header=True)
    loaded = read_vectors(tmp_path / "glove.txt")
    assert loaded.words == expected.index_to_key
    np.testing.assert_array_equal(loaded.vectors, expected.vectors)


@pytest.mark.parametrize("lengths", [(3, 6), (1, 2), (4, 4)])
def test_gensims_fasttext_files_in_both_directions(gensim: Any, lengths: tuple[int, int], tmp_path: Path) -> None:
    from gensim.models.fasttext import load_facebook_vectors, save_facebook_model

    settings = {"min_count": 1, "epochs": 1, "workers": 1, "bucket": 53, "seed": 3}
    model = gensim.models.FastText([WORDS] * 3, vector_size=7, min_n=lengths[0], max_n=lengths[1], **settings)
    save_facebook_model(model, str(tmp_path / "gensim.bin"))
    expected = load_facebook_vectors(str(tmp_path / "gensim.bin"))
    loaded = read_vectors(tmp_path / "gensim.bin")
    assert loaded.words == expected.index_to_key
    np.testing.assert_allclose(loaded.vectors, expected.vectors, atol=1e-7)
    composed = loaded.subwords.compose_unknown(UNKNOWN)
    np.testing.assert_allclose(composed, [expected.get_vector(word) for word in UNKNOWN], atol=1e-7)
    write_vectors(tmp_path / "lmzoo.bin", loaded, "fasttext")
    reloaded = load_facebook_vectors(str(tmp_path / "lmzoo.bin"))
    np.testing.assert_allclose(reloaded.vectors, expected.vectors, atol=1e-6)
    np.testing.assert_array_equal(reloaded.vectors_ngrams, expected.vectors_ngrams)
    gensim.models.fasttext.load_facebook_model(str(tmp_path / "lmzoo.bin"))  # with the output layer


def test_hashes_of_ngrams() -> None:
    """The reference is FNV-1a in pure Python, on bytes with sign extension."""

    def ngrams_of(word: str) -> list[str]:
        marked = f"<{word}>"
        spans = [(i, j) for i in range(len(marked)) for j in range(i + 1, len(marked) + 1) if 1 <= j - i <= 4]
        return [marked[i:j] for i, j in spans if marked[i:j] not in ("<", ">")]

    def hash_of(ngram: str) -> int:
        value = 2166136261
        for byte in ngram.encode():
            value = ((value ^ (byte | (0xFFFFFF00 if byte > 127 else 0))) * 16777619) % 2**32
        return value

    word_index, buckets = hash_ngrams(["naïve", "", "日本"], 1, 4, 97)
    for i, word in enumerate(["naïve", "", "日本"]):
        assert sorted(buckets[word_index == i]) == sorted(hash_of(ngram) % 97 for ngram in ngrams_of(word))


def test_the_end_of_a_sentence_has_no_ngrams(tmp_path: Path) -> None:
    """In fastText, "</s>" has only its own vector, which the file then holds."""
    subwords = make_table(with_subwords=True).subwords
    vectors = np.array([[1, 2, 3, 5, 7], [0.5, -1, 1 / 3, 11, 13]], "float32")
    np.testing.assert_array_equal(subwords.compose(["</s>"], vectors[:1]), vectors[:1])
    np.testing.assert_array_equal(subwords.compose_unknown(["</s>"]), np.zeros((1, 5)))
    _, counts = subwords.sum_vectors(["a", "</s>", "film"])
    assert counts.tolist() == [1, 0, 9]
    write_vectors(tmp_path / "vectors.bin", VectorTable(["</s>", "film"], vectors, subwords), "fasttext")
    assert vectors[0].tobytes() in (tmp_path / "vectors.bin").read_bytes()
    loaded = read_vectors(tmp_path / "vectors.bin")
    np.testing.assert_allclose(loaded.vectors, vectors, atol=1e-6)


def test_words_with_spaces(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2\n. . . 3 4\n\xa0 5 6\n", "utf-8")
    loaded = read_vectors(path)
    assert loaded.words == ["the", ". . .", "\xa0"]
    np.testing.assert_array_equal(loaded.vectors, [[1, 2], [3, 4], [5, 6]])
    with pytest.raises(ValueError, match=r"'\. \. \.' is empty or contains spaces"):
        write_vectors(tmp_path / "resaved.txt", loaded, "glove")


def test_repeated_and_invalid_words(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(b"3 2\nthe 1 2\nthe 3 4\nfilm 5 6 \n")  # fastText's lines end in a space
    with pytest.warns(TextWarning, match=r"vectors\.txt repeats 1 of 3 words"):
        loaded = read_vectors(path)
    assert loaded.words == ["the", "film"]
    np.testing.assert_array_equal(loaded.vectors, [[1, 2], [5, 6]])
    path.write_bytes(b"caf\xe9 1 2\n")
    with pytest.warns(TextWarning, match="invalid UTF-8"):
        assert read_vectors(path).words == ["caf\ufffd"]


@pytest.mark.parametrize("content", ["2 2\nthe 1 2\nfilm 3 4\n", "the 1 2\nfilm 3 4\n"])
def test_a_byte_order_mark_is_left_out(content: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(content, "utf-8-sig")
    loaded = read_vectors(path)
    assert loaded.words == ["the", "film"]
    np.testing.assert_array_equal(loaded.vectors, [[1, 2], [3, 4]])


def test_a_first_word_with_a_space_is_not_taken_for_a_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("2 3\nnew york 1 2 3 \nfilm 4 5 6\n", "utf-8")
    loaded = read_vectors(path)
    assert loaded.words == ["new york", "film"]
    np.testing.assert_array_equal(loaded.vectors, [[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize("format", FORMATS)
def test_tables_that_files_cannot_hold_are_not_written(format: str, tmp_path: Path) -> None:
    table = make_table(with_subwords=True)
    words = [*WORDS[:-1], "a\0b"]
    with pytest.raises(ValueError, match=r"The word 'a\\x00b' holds a zero byte"):
        write_vectors(tmp_path / "vectors", VectorTable(words, table.vectors, table.subwords), format)
    vectors = table.vectors.copy()
    vectors[3, 2] = np.nan
    with pytest.raises(ValueError, match="The vector of '日本' holds NaN or infinite numbers"):
        write_vectors(tmp_path / "vectors", VectorTable(WORDS, vectors, table.subwords), format)
    assert not [*tmp_path.iterdir()]


def test_a_byte_order_mark_in_the_first_word_is_not_written_without_a_header(tmp_path: Path) -> None:
    table = VectorTable(["\ufeffa", "b"], np.eye(2, dtype="float32"))
    with pytest.raises(ValueError, match="begins with a byte order mark"):
        write_vectors(tmp_path / "vectors", table, "glove")
    write_vectors(tmp_path / "vectors", table, "word2vec")
    assert read_vectors(tmp_path / "vectors").words == table.words


DAMAGED = {
    b"": "holds no word vectors",
    b"0 3\n": "holds no word vectors",
    b"film\n": r"line 1 \('film\\n'\): expected a word and its numbers",
    b"film 1 2\nbook 3\n": r"line 2 \('book 3\\n'\): expected a word and 2 numbers",
    b"film 1 2\nbook 3 x\n": r"line 2 .*expected a word and 2 numbers",
    b"film 1 2\n\nbook 3 4\n": "line 2 is empty, but more lines follow",
    b"2 2\nfilm 1 2\n": "holds 1 words, but its first line states 2",
    b"1 2\nfilm 1 2\nbook 3 4\n": "holds 2 words, but its first line states 1",
    b"1000000000000 3\nfilm 1 2 3\n": "holds 1 words, but its first line states 1,000,000,000,000",
    b"1 1000000000000\nfilm 1 2 3\n": "states vectors of width 1,000,000,000,000",
    b"film 1 nan\n": "the vector of 'film' holds NaN",
    b"1000000000000 2\nfilm \0\0\0\0": "is truncated or damaged: it ends in word 1 of 1,000,000,000,000",
    b"1 1000000000000\nfilm \0\0\0\0": "states vectors of width 1,000,000,000,000",
    b"1 1\nfilm \0\0\0\0book \0\0\0\0": "more bytes follow after 1 words",
    b"\x0a\0\0\0\x05\0\0\0": "is a binary file, but neither word2vec's nor fastText's",
    b"PK\x03\x04": "is a zip archive. Extract it",
    gzip.compress(b"film 1 2\n", mtime=0)[:-9]: "is a damaged archive",
}


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=DAMAGED[content]) as error:
        read_vectors(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_truncated_fasttext_files_are_refused(suffix: str, tmp_path: Path) -> None:
    write_vectors(tmp_path / "model.bin", make_table(with_subwords=True), "fasttext")
    content = (tmp_path / "model.bin").read_bytes()
    path = tmp_path / f"damaged.bin{suffix}"
    for part in (
        content[:7],
        content[:40],
        content[:120],
        content[:200],
        content[:1500],
        content[:-3],
        content + b"\0",
    ):
        path.write_bytes(gzip.compress(part) if suffix else part)
        with pytest.raises(ValueError, match=r"damaged\.bin.* is truncated or damaged"):
            read_vectors(path)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (4, 13, "not a fastText model of version 11 or 12"),
        (8, 2**31 - 1, "sizes in its header are not valid"),
        (36, 3, "is a fastText classifier"),
        (40, 2**31 - 1, "a matrix has 109 x 5 numbers instead of 2,147,483,655 x 5"),
        (64, 2**31 - 1, "sizes in its header are not valid"),
        (72, 1, "holds labels or a pruned vocabulary"),
    ],
)
def test_altered_fasttext_files_are_refused(offset: int, value: int, message: str, tmp_path: Path) -> None:
    write_vectors(tmp_path / "model.bin", make_table(with_subwords=True), "fasttext")
    content = bytearray((tmp_path / "model.bin").read_bytes())
    content[offset : offset + 4] = struct.pack("<i", value)
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_vectors(tmp_path / "model.bin")


def test_errors_of_formats_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`format` must be one of 'word2vec', .* got 'bin'"):
        write_vectors(tmp_path / "vectors", make_table(), "bin")
    with pytest.raises(ValueError, match="needs vectors of character n-grams"):
        write_vectors(tmp_path / "vectors", make_table(), "fasttext")
    with pytest.raises(FileNotFoundError):
        read_vectors(tmp_path / "missing.txt")
