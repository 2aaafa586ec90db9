"""Readers and writers of files of word vectors; the first bytes of a file determine its format."""

from __future__ import annotations

import codecs
import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from lmzoo.common.arguments import require
from lmzoo.data.readers.text_files import ARCHIVE_ERRORS, decompress
from lmzoo.files.urls import open_to_read
from lmzoo.static_vectors.fasttext import MAGIC, read_fasttext, write_fasttext
from lmzoo.static_vectors.vector_table import VectorTable, find_invalid_vector
from lmzoo.static_vectors.word2vec import HEADER, read_binary, read_text, write_binary, write_text

FORMATS = ("word2vec", "word2vec_binary", "glove", "fasttext")

_HEAD_BYTES = 1 << 12
_ARCHIVES = {b"PK\x03\x04": "zip", b"BZh": "bzip2", b"7z\xbc\xaf": "7-Zip"}
_NUMBER_CHARACTERS = frozenset(b"0123456789+-.eE naifNIF\r")


def read_vectors(path: str | Path, verbose: bool = True) -> VectorTable:
    r"""Read word vectors from a file of word2vec (text or binary), GloVe or fastText (.vec or .bin).

    Args:
        path: path or URL (read by fsspec) of the file, which may be compressed by gzip or xz.
        verbose: whether to show progress.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is truncated, damaged or not in one of these formats; the message names it.

    Example:

    ```python
    from pathlib import Path
    from lmzoo.static_vectors import read_vectors

    Path("vectors.txt").write_text("film 0.1 0.2 0.3\nbook 0.4 0.5 0.6\n")
    read_vectors("vectors.txt").words  # ["film", "book"]
    ```
    """
    with _open(path) as file:
        head = file.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8)
    for magic, name in _ARCHIVES.items():
        if head.startswith(magic):
            raise ValueError(f"{path} is a {name} archive. Extract it, and pass the file with the vectors.")
    is_binary = _is_binary(head)
    if b"\0" in head and not (is_binary or head.startswith(MAGIC)):
        raise ValueError(
            f"{path} is a binary file, but neither word2vec's nor fastText's. (Models of fastText from before version "
            "0.1 are not supported: use their .vec file.)"
        )
    with _open(path) as file:
        if head.startswith(MAGIC):
            return read_fasttext(path, file, verbose)
        return (read_binary if is_binary else read_text)(path, file, verbose)


@contextlib.contextmanager
def _open(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file to read, and decompress it if it is compressed by gzip or xz.

    Raises:
        ValueError: If the compressed data is damaged.
    """
    with open_to_read(path) as file:
        try:
            yield decompress(file)
        except ARCHIVE_ERRORS as error:
            raise ValueError(f"{path} is a damaged archive: {error}. Download it again.") from None


def _is_binary(head: bytes) -> bool:
    """Return whether `head`, the beginning of a file, holds word2vec's first line and then a binary vector."""
    file = io.BytesIO(head)
    header = HEADER.fullmatch(file.readline())
    if header is None:
        return False
    width = int(header[2])
    body = file.read().lstrip(b"\n")
    line, line_end, _ = body.partition(b"\n")
    if line_end and _ends_in_numbers(line, width):
        return False
    after_word = body.partition(b" ")[2]
    number_bytes = after_word[: 4 * width].partition(b"\n")[0]
    # A newline may be a byte of a binary vector.
    is_long_enough = len(number_bytes) >= min(2 * width - 1, len(after_word))
    return not (is_long_enough and _NUMBER_CHARACTERS.issuperset(number_bytes))


def _ends_in_numbers(line: bytes, width: int) -> bool:
    """Return whether a line holds a word, which may contain spaces, and `width` numbers."""
    fields = line.rstrip().rsplit(b" ", min(width, len(line)))
    try:
        numbers = [*map(float, fields[1:])]
    except ValueError:
        return False
    return len(numbers) == width


def write_vectors(path: str | Path, table: VectorTable, format: str, verbose: bool = True) -> None:
    """Write word vectors to a file.

    Args:
        path: path or URL of the file; an existing file is replaced once the new file is complete.
        table: words with their vectors.
        format: one of `FORMATS`.
        verbose: whether to show progress.

    Raises:
        ValueError: If the format is unknown, needs subwords or cannot hold a word, or a vector is not finite.
    """
    require(format in FORMATS, "format", f"one of {', '.join(map(repr, FORMATS))}", format)
    if (row := find_invalid_vector(table.vectors)) is not None:
        raise ValueError(
            f"The vector of {table.words[row]!r:.60} holds NaN or infinite numbers. Save without this word."
        )
    if (word := next((word for word in table.words if "\0" in word), None)) is not None:
        raise ValueError(f"The word {word!r:.60} holds a zero byte, which ends words in files. Save without this word.")
    if format == "fasttext":
        write_fasttext(path, table, verbose)
    elif format == "word2vec_binary":
        write_binary(path, table, verbose)
    else:
        write_text(path, table, format == "word2vec", verbose)
