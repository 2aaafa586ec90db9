"""Reader and writer of fastText's binary files.

All numbers are little-endian:

    int32     magic number, version
    int32     hidden_dim, window, epochs, minimum count, negatives, word n-grams, loss, model, number of buckets, K,
              minimum and maximum length of n-grams, update rate
    float64   sampling threshold
    int32     number of entries, words and labels
    int64     number of tokens in the training text, number of pruned n-grams (-1 for none)
    entries   for each word: the word, a zero byte, its count as an int64, and its kind as an int8, 0 for words
    bool      whether the vectors are quantized
    int64     number of vectors, their width
    float32   vectors of the V words, then of the K buckets of n-grams
    bool, int64, float32   the same for the V vectors of the output layer, which are only needed to continue training
"""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from lmzoo.common.progress import progress_bar
from lmzoo.files.urls import is_url, whole_file
from lmzoo.static_vectors.byte_reader import ByteReader
from lmzoo.static_vectors.subwords import Subwords
from lmzoo.static_vectors.vector_table import MAX_HIDDEN_DIM, VectorTable, make_table

MAGIC = struct.pack("<i", 793712314)

_VERSION = 12
_VERSIONS = (11, 12)
_SUPERVISED = 3  # value of `model` for classifiers
_SKIP_GRAM = 2  # value of `model`
_NEGATIVE_SAMPLING = 2  # value of `loss`
_MAX_NGRAM_LENGTH = 100
_CHUNK_WORDS = 16_384  # words composed or written at once


class _Header(NamedTuple):
    """Sizes in the header of a file."""

    hidden_dim: int
    num_buckets: int
    min_length: int
    max_length: int


def read_fasttext(path: str | Path, file: BinaryIO, verbose: bool = True) -> VectorTable:
    """Read a fastText model.

    The vector of a word is composed from its own vector and the vectors of its n-grams. The vectors of n-grams are
    memory-mapped if the file is local and not compressed.

    Args:
        path: path of the file.
        file: the decompressed file, open at its beginning.
        verbose: whether to show progress.

    Raises:
        ValueError: If the file is truncated or damaged, has an unsupported version, or holds a classifier, a pruned
            vocabulary or a quantized model.
    """
    reader = ByteReader(path, file)
    header = _read_header(reader, path)
    words = _read_words(reader, path, verbose)
    num_rows = len(words) + header.num_buckets
    can_map = isinstance(file, io.BufferedReader) and not is_url(path)  # otherwise it is a decompressed stream
    vectors = _read_matrix(reader, path, num_rows, header.hidden_dim, can_map)
    if can_map:
        file_size = os.path.getsize(os.path.expanduser(path))
        output_size = 17 + 4 * len(words) * header.hidden_dim
        if file_size != reader.position + vectors.nbytes + output_size:
            expected_size = reader.position + vectors.nbytes + output_size
            raise reader.error(f"it has {file_size:,} bytes, but its header describes {expected_size:,}")
    else:
        _read_matrix(reader, path, len(words), header.hidden_dim, False)
        if not reader.is_at_end():
            raise reader.error(f"it does not end after {reader.position:,} bytes, as its header says")
    if not header.num_buckets or not header.max_length:
        return make_table(path, words, vectors[: len(words)])
    subwords = Subwords(header.min_length, header.max_length, vectors[len(words) :])
    word_table = make_table(path, words, vectors[: len(words)])
    return VectorTable(word_table.words, _compose(word_table, subwords, verbose), subwords)


def _read_header(reader: ByteReader, path: str | Path) -> _Header:
    """Read the sizes in the header, and check that the file holds word vectors."""
    magic, version = reader.unpack("<4si", "the header")
    if magic != MAGIC or version not in _VERSIONS:
        raise ValueError(f"{path} is not a fastText model of version 11 or 12 (it states version {version}).")
    header_values = reader.unpack("<12i", "the header")
    reader.read(8, "the header")
    hidden_dim, *_, model, num_buckets, min_length, max_length, _ = header_values
    if model == _SUPERVISED:
        raise ValueError(f"{path} is a fastText classifier. Only models of word vectors are supported.")
    is_valid = 0 < hidden_dim <= MAX_HIDDEN_DIM and num_buckets >= 0
    if not (is_valid and 0 <= max_length <= _MAX_NGRAM_LENGTH and min_length >= 0):
        raise reader.error("the sizes in its header are not valid")
    return _Header(hidden_dim, num_buckets, min_length, max_length)


def _read_words(reader: ByteReader, path: str | Path, verbose: bool) -> list[bytes]:
    """Read the words of the vocabulary."""
    num_entries, num_words, num_labels = reader.unpack("<3i", "the header")
    _, num_pruned = reader.unpack("<2q", "the header")
    if num_labels or num_pruned > 0:
        raise ValueError(f"{path} holds labels or a pruned vocabulary. Only models of word vectors are supported.")
    if num_entries != num_words or num_words < 0:
        raise reader.error("the sizes in its header are not valid")
    words = []
    with progress_bar("Reading", num_words, "words", verbose) as advance:
        for i in range(num_words):
            words.append(reader.read_word(b"\0", "the vocabulary"))
            _, kind = reader.unpack("<qb", "the vocabulary")
            if kind:
                raise reader.error(f"entry {i} of its vocabulary is not a word")
            advance(1)
    return words


def _read_matrix(reader: ByteReader, path: str | Path, num_rows: int, width: int, can_map: bool) -> np.ndarray:
    """Read a matrix of vectors, float32 (num_rows, width), or memory-map it if `can_map` is True."""
    is_quantized, stored_rows, stored_width = reader.unpack("<?2q", "the vectors")
    if is_quantized:
        raise ValueError(f"{path} is quantized. Only models in full precision (.bin) are supported.")
    if (stored_rows, stored_width) != (num_rows, width):
        sizes = f"{stored_rows:,} x {stored_width:,} numbers instead of {num_rows:,} x {width:,}"
        raise reader.error(f"a matrix has {sizes}")
    num_bytes = 4 * num_rows * width
    if can_map:
        local_path = os.path.expanduser(path)
        if os.path.getsize(local_path) < reader.position + num_bytes:
            raise reader.error("it ends in the vectors")
        return np.memmap(local_path, "<f4", "r", reader.position, (num_rows, width))
    return np.frombuffer(reader.read(num_bytes, "the vectors"), "<f4").reshape(num_rows, width)


def _compose(word_table: VectorTable, subwords: Subwords, verbose: bool) -> np.ndarray:
    """Return the vectors, float32 (V, H), of V words: means of a word's own vector and the vectors of its n-grams."""
    vectors = np.empty(word_table.vectors.shape, "float32")
    with progress_bar("Composing vectors", len(vectors), "words", verbose) as advance:
        for start in range(0, len(vectors), _CHUNK_WORDS):
            chunk = slice(start, start + _CHUNK_WORDS)
            vectors[chunk] = subwords.compose(word_table.words[chunk], word_table.vectors[chunk])
            advance(len(vectors[chunk]))
    return vectors


def write_fasttext(path: str | Path, table: VectorTable, verbose: bool = True) -> None:
    """Write a fastText model, which fastText and gensim can read, but not continue to train.

    The words' own vectors are computed from the composed vectors, with rounding errors. Counts of words, which only
    training needs, are written as 1, and the output layer as zeros.

    Args:
        path: file to write; an existing file is replaced once the new file is complete.
        table: words with their vectors and subwords.
        verbose: whether to show progress.

    Raises:
        ValueError: If the table has no subwords.
    """
    if table.subwords is None:
        raise ValueError(
            "fastText's format needs vectors of character n-grams. Use another format, such as 'word2vec'."
        )
    subwords = table.subwords
    num_words, width = table.vectors.shape
    num_buckets = len(subwords.vectors)
    subword_values = (num_buckets, subwords.min_length, subwords.max_length)
    header_values = (width, 5, 5, 1, 5, 1, _NEGATIVE_SAMPLING, _SKIP_GRAM, *subword_values, 100)
    with whole_file(path) as file, progress_bar("Writing", num_words, "words", verbose) as advance:
        file.write(MAGIC + struct.pack("<i12id", _VERSION, *header_values, 1e-4))
        file.write(struct.pack("<3i2q", num_words, num_words, 0, num_words, -1))
        for word in table.words:
            file.write(word.encode() + b"\0" + struct.pack("<qb", 1, 0))
        file.write(struct.pack("<?2q", False, num_words + num_buckets, width))
        for start in range(0, num_words, _CHUNK_WORDS):
            chunk = slice(start, start + _CHUNK_WORDS)
            sums, ngram_counts = subwords.sum_vectors(table.words[chunk])
            word_vectors = table.vectors[chunk] * (ngram_counts + 1)[:, None] - sums
            file.write(word_vectors.astype("<f4").tobytes())
            advance(len(ngram_counts))
        for start in range(0, num_buckets, _CHUNK_WORDS):
            file.write(subwords.vectors[start : start + _CHUNK_WORDS].astype("<f4").tobytes())
        file.write(struct.pack("<?2q", False, num_words, width))
        for start in range(0, num_words, _CHUNK_WORDS):
            file.write(bytes(4 * width * len(table.words[start : start + _CHUNK_WORDS])))
