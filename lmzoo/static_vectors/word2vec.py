"""Readers and writers of word2vec's text and binary files, and of GloVe's text files, which have no header.

The first line of word2vec's files states the number of words and the width of the vectors. In text files, a line holds
a word and its numbers, separated by spaces. In binary files, a word, a space, and its numbers as little-endian float32
follow each other, with or without line ends in between.
"""

from __future__ import annotations

import codecs
import contextlib
import re
from array import array
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lmzoo.common.progress import progress_bar
from lmzoo.files.urls import whole_file
from lmzoo.static_vectors.byte_reader import ByteReader
from lmzoo.static_vectors.vector_table import MAX_HIDDEN_DIM, VectorTable, make_table

HEADER = re.compile(rb"\s*(\d+)[ \t]+(\d+)\s*")
_MAX_LINE_BYTES = 1 << 26


def read_text(path: str | Path, file: BinaryIO, verbose: bool = True) -> VectorTable:
    """Read a text file of word2vec, fastText or GloVe.

    The last fields of a line are its numbers, one for each feature, so that words may contain spaces, as in some files
    of GloVe. A byte order mark at the beginning is left out.

    Args:
        path: path of the file, for messages.
        file: the decompressed file, open at its beginning.
        verbose: whether to show progress.

    Raises:
        ValueError: If the file is truncated or damaged; the message names the line, if a single line is wrong.
    """
    line = file.readline(_MAX_LINE_BYTES).removeprefix(codecs.BOM_UTF8)
    line_number = 1
    num_words = None
    width = None
    if header := HEADER.fullmatch(line):
        num_words, width = int(header[1]), int(header[2])
        line = file.readline(_MAX_LINE_BYTES)
        line_number = 2
    words: list[bytes] = []
    numbers = array("f")
    with progress_bar("Reading", num_words, "words", verbose) as advance:
        while line.strip(b"\r\n"):
            if width is None:
                width = len(line.split()) - 1
            fields = line.rstrip().rsplit(b" ", width)
            try:
                numbers.extend(map(float, fields[1:]))
            except ValueError:
                fields = []
            if len(fields) != width + 1 or not width:
                content = f"{line[:60].decode(errors='replace')!r}"
                raise ValueError(
                    f"{path}, line {line_number} ({content}): expected a word and {width or 'its'} numbers."
                )
            words.append(fields[0])
            line = file.readline(_MAX_LINE_BYTES)
            line_number += 1
            advance(1)
    if line and file.read(1):
        raise ValueError(f"{path}, line {line_number} is empty, but more lines follow. The file is damaged.")
    if num_words is not None and num_words != len(words):
        raise ValueError(
            f"{path} holds {len(words):,} words, but its first line states {num_words:,}. It is truncated or altered: "
            "download or write it again."
        )
    return make_table(path, words, np.frombuffer(numbers, "float32").reshape(-1, width or 1))


def read_binary(path: str | Path, file: BinaryIO, verbose: bool = True) -> VectorTable:
    """Read a binary file of word2vec.

    Args:
        path: path of the file, for messages.
        file: the decompressed file, open at its beginning.
        verbose: whether to show progress.

    Raises:
        ValueError: If the file is truncated or damaged.
    """
    reader = ByteReader(path, file)
    header = HEADER.fullmatch(reader.read_word(b"\n", "the first line"))
    if header is None:
        raise ValueError(f"{path}, line 1: expected the number of words and the width of their vectors.")
    num_words, width = int(header[1]), int(header[2])
    if not 0 < width <= MAX_HIDDEN_DIM:
        raise reader.error(f"its first line states vectors of width {width:,}")
    words = []
    vectors = bytearray()
    with progress_bar("Reading", num_words, "words", verbose) as advance:
        for i in range(num_words):
            content = f"word {i + 1:,} of {num_words:,}"
            words.append(reader.read_word(b" ", content).lstrip(b"\n"))
            vectors += reader.read(4 * width, content)
            advance(1)
    if not reader.is_at_end():
        raise reader.error(f"more bytes follow after {num_words:,} words, the number that its first line states")
    return make_table(path, words, np.frombuffer(vectors, "<f4").reshape(-1, width))


def write_text(path: str | Path, table: VectorTable, header: bool = True, verbose: bool = True) -> None:
    """Write word vectors to a text file in the format of word2vec or GloVe, at full precision.

    Args:
        path: file to write; an existing file is replaced once the new file is complete.
        table: words with their vectors.
        header: whether to write word2vec's header line (the numbers of words and of dimensions), which GloVe's
            files do not have.
        verbose: whether to show progress.

    Raises:
        ValueError: If a word is empty or contains whitespace; without `header`, also if the first word begins with a
            byte order mark.
    """
    _check_words(table)
    if not header and table.words[0].startswith("\ufeff"):
        raise ValueError(
            f"The word {table.words[0]!r:.60} begins with a byte order mark, which readers leave out at the start of "
            "GloVe's files. Save as 'word2vec'."
        )
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(whole_file(path))
        advance = stack.enter_context(progress_bar("Writing", len(table.words), "words", verbose))
        if header:
            file.write("{} {}\n".format(*table.vectors.shape).encode())
        for word, vector in zip(table.words, table.vectors, strict=True):
            file.write(f"{word} {' '.join(map(str, vector))}\n".encode())
            advance(1)


def write_binary(path: str | Path, table: VectorTable, verbose: bool = True) -> None:
    """Write a binary file of word2vec; see `write_text` for the arguments.

    Raises:
        ValueError: If a word is empty or contains whitespace.
    """
    _check_words(table)
    with whole_file(path) as file, progress_bar("Writing", len(table.words), "words", verbose) as advance:
        file.write("{} {}\n".format(*table.vectors.shape).encode())
        for word, vector in zip(table.words, table.vectors, strict=True):
            file.write(word.encode() + b" " + vector.astype("<f4").tobytes() + b"\n")
            advance(1)


def _check_words(table: VectorTable) -> None:
    """Raise a ValueError if a word is empty or contains whitespace, since files cannot hold such words."""
    for word in table.words:
        if not word or re.search(r"[ \t\n\v\f\r]", word):
            raise ValueError(
                f"The word {word!r:.60} is empty or contains spaces, which separate words in word2vec's and GloVe's "
                "files. Save the vectors with `save_to_preset`, or without this word."
            )
