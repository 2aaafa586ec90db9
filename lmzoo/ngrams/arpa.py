r"""Reader and writer of ARPA files, the text format of n-gram models in SRILM and KenLM (see ngram-format(5)).

Probabilities and backoff weights are base-10 logarithms. The file begins with the number of n-grams of each order;
a section for each order follows:

    \data\
    ngram 1=5
    ngram 2=2

    \1-grams:
    -1.2	<unk>	0
    -99	<s>	-0.3
    ...
    \2-grams:
    -0.4	<s> film
    ...
    \end\
"""

from __future__ import annotations

import array
import codecs
import contextlib
import gzip
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lmzoo.common.progress import progress_bar
from lmzoo.data.readers.text_files import ARCHIVE_ERRORS, decompress
from lmzoo.files.urls import open_to_read, whole_file
from lmzoo.ngrams.table import NEVER, START, UNKNOWN, NgramTable

SPECIAL = ("<unk>", "<s>", "</s>")  # in the order of UNKNOWN, START and END
UNKNOWN_ALIAS = "<UNK>"  # read as <unk>, so it cannot be a word
SPACES = "\0\t\n\v\f\r "  # separators of words in files, which words must not contain
MISSING = -100.0  # log10 probability of <unk> for files without it, as in KenLM

_MAX_LOG10 = 1e30  # beyond any valid logarithm, and within the range of float32
_CHUNK_SIZE = 65_536  # n-grams written at once


def write_arpa(path: str | Path, table: NgramTable, words: Sequence[str], verbose: bool = True) -> None:
    """Write an n-gram model to an ARPA file, compressed if the name ends in ".gz", without loss of precision.

    Args:
        path: file to write; an existing file is replaced once the new file is complete.
        table: n-grams and their probabilities.
        words: the vocabulary; the index of a word is its token.
        verbose: whether to show progress.

    Raises:
        OSError: If the file cannot be written.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(whole_file(path))
        if os.fspath(path).endswith(".gz"):
            file = stack.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0))  # type: ignore[assignment]
        advance = stack.enter_context(progress_bar("Writing", sum(map(len, table.keys)), "n-grams", verbose))
        counts = "".join(f"ngram {n}={len(keys)}\n" for n, keys in enumerate(table.keys, 1))
        file.write(f"\\data\\\n{counts}".encode())
        for order, keys in enumerate(table.keys, 1):
            file.write(f"\n\\{order}-grams:\n".encode())
            for chunk_begin in range(0, len(keys), _CHUNK_SIZE):
                lines = _format_lines(
                    table, np.array(words, "object"), order, slice(chunk_begin, chunk_begin + _CHUNK_SIZE)
                )
                file.write("".join(lines).encode())
                advance(len(lines))
        file.write(b"\n\\end\\\n")


def _format_lines(table: NgramTable, words: np.ndarray, order: int, chunk: slice) -> list[str]:
    """Return lines of an ARPA file for some n-grams of one order.

    Args:
        table: the n-grams.
        words: spelling of each token of the vocabulary.
        order: int, number of words in an n-gram.
        chunk: slice of the n-grams of this order.
    """
    keys = table.keys[order - 1][chunk]
    word_columns = []
    for n in range(order, 0, -1):
        word_columns.append(words[keys % table.vocabulary_size].tolist())
        if n > 1:
            keys = table.keys[n - 2][keys // table.vocabulary_size]
    ngrams = map(" ".join, zip(*word_columns[::-1], strict=True))
    log10_values = table.log10[order - 1][chunk].tolist()
    if order == table.order:
        return [f"{log10:.9g}\t{ngram}\n" for log10, ngram in zip(log10_values, ngrams, strict=True)]
    weights = table.backoff[order - 1][chunk].tolist()
    rows = zip(log10_values, ngrams, weights, strict=True)
    return [f"{log10:.9g}\t{ngram}\t{weight:.9g}\n" for log10, ngram, weight in rows]


def read_arpa(path: str | Path, verbose: bool = True) -> tuple[NgramTable, list[str]]:
    """Read an n-gram model from an ARPA file, which may be compressed by gzip or xz.

    `<UNK>` is read as `<unk>`. If a file has neither, the probability of unknown words is 1e-100.

    Args:
        path: file to read.
        verbose: whether to show progress.

    Returns:
        The n-grams, and the vocabulary, in which the index of a word is its token.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, truncated or not an ARPA file; the message gives the line.
    """
    with open_to_read(path) as file:
        try:
            return _Reader(path, decompress(file), verbose).read()
        except ARCHIVE_ERRORS as error:
            raise ValueError(f"{path} is a damaged archive: {error}") from None


class _Reader:
    """Parser of an ARPA file, which is read line by line."""

    def __init__(self, path: str | Path, file: BinaryIO, verbose: bool) -> None:
        self.path = path
        self.file = file
        self.verbose = verbose
        self.line = b""
        self.number = 0
        self.words = list(SPECIAL)
        self.tokens = {word.encode(): token for token, word in enumerate(SPECIAL)}
        self.tokens[UNKNOWN_ALIAS.encode()] = UNKNOWN

    def read(self) -> tuple[NgramTable, list[str]]:
        """Read the file, and return the n-grams and the vocabulary."""
        while self._read_line().removeprefix(codecs.BOM_UTF8) != b"\\data\\":
            if not self.line:
                raise self._make_error("there is no \\data\\ line; is it an ARPA file?")
        counts: list[int] = []
        while match := re.fullmatch(rb"ngram +(\d{1,18}) *= *(\d{1,18})", self._read_filled_line()):
            counts.append(int(match[2]))
            if int(match[1]) != len(counts):
                raise self._make_error(f"expected the number of {len(counts)}-grams")
        if not counts:
            raise self._make_error("expected the numbers of n-grams, such as `ngram 1=5`")
        table = NgramTable([], [], [])
        with progress_bar("Reading", sum(counts), "n-grams", self.verbose) as advance:
            for order, count in enumerate(counts, 1):
                self._expect(f"\\{order}-grams:")
                first_line = self.number + 1
                ngrams, log10, backoff = self._read_section(order, count)
                if order == 1:
                    self._add_unigrams(table, ngrams[:, 0], log10, backoff, first_line)
                else:
                    self._add_ngrams(table, ngrams, log10, backoff, first_line)
                advance(count)
                self._read_filled_line()
        self._expect("\\end\\")
        if self._read_filled_line():  # reading to the end also checks the checksum of a compressed file
            raise self._make_error("expected nothing after \\end\\")
        table.backoff.pop()  # the highest order has no backoff weights
        return table, self.words

    def _read_section(self, order: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Read the N n-grams of an order; unigrams are added to the vocabulary.

        Returns:
            The tokens, int (N, order), the log10 probabilities, float (N,), and the log10 backoff weights, float (N,).
        """
        ngrams = array.array("i")
        log10 = array.array("f")
        backoff = array.array("f")
        tokens = self.tokens
        allowed_lengths = (order + 1, order + 2)
        for num_read in range(count):
            fields = self._read_line().split()
            if len(fields) not in allowed_lengths:
                if not fields or fields[0].startswith(b"\\"):
                    raise self._make_error(f"the {order}-grams end after {num_read} of {count}")
                raise self._make_error(f"expected a probability, {order} words and perhaps a backoff weight")
            if order == 1 and fields[1] not in tokens:
                tokens[fields[1]] = len(self.words)
                self.words.append(self._decode(fields[1]))
            try:
                log10_probability = float(fields[0])
                log10_weight = float(fields[order + 1]) if len(fields) > order + 1 else 0.0
                ngrams.extend([tokens[word] for word in fields[1 : order + 1]])
            except ValueError:
                raise self._make_error("expected numbers for the probability and the backoff weight") from None
            except KeyError as error:
                raise self._make_error(f"the word {self._decode(error.args[0])!r} is not among the 1-grams") from None
            if not (-_MAX_LOG10 < log10_probability <= 0 and abs(log10_weight) < _MAX_LOG10):
                raise self._make_error("the logarithms of the probability and the backoff weight are not possible ones")
            log10.append(log10_probability)
            backoff.append(log10_weight)
        return np.array(ngrams).reshape(-1, order), np.array(log10), np.array(backoff)

    def _add_unigrams(
        self, table: NgramTable, tokens: np.ndarray, log10: np.ndarray, backoff: np.ndarray, first_line: int
    ) -> None:
        """Add a file's unigrams, which begin on line `first_line`, to an empty table.

        Raises:
            ValueError: If a unigram is repeated, or `<s>` or `</s>` is missing.
        """
        for word in SPECIAL[1:]:
            if self.tokens[word.encode()] not in tokens:
                raise self._make_error(f"the 1-grams lack {word}")
        self._check_unique(tokens, np.argsort(tokens, kind="stable"), first_line)
        vocabulary_size = len(self.words)
        for arrays_by_order, values, default_value in ((table.log10, log10, MISSING), (table.backoff, backoff, 0.0)):
            arrays_by_order.append(np.full(vocabulary_size, default_value, "float32"))
            arrays_by_order[0][tokens] = values
        table.log10[0][START] = NEVER  # KenLM writes 0
        table.keys.append(np.arange(vocabulary_size))

    def _add_ngrams(
        self, table: NgramTable, ngrams: np.ndarray, log10: np.ndarray, backoff: np.ndarray, first_line: int
    ) -> None:
        """Add the n-grams of the next order to the table, in the order of their keys.

        Raises:
            ValueError: If an n-gram is repeated, or the table lacks its parent.
        """
        parents = ngrams[:, 0].astype("int64")
        for n in range(2, ngrams.shape[1]):
            parents = table.find(n, parents, ngrams[:, n - 1])
        if len(orphans := np.flatnonzero(parents < 0)):
            prefix = " ".join(self.words[token] for token in ngrams[orphans[0]][:-1])
            raise ValueError(
                f"{self.path}, line {first_line + orphans[0]}: {prefix!r} is not among the shorter n-grams."
            )
        keys = parents * table.vocabulary_size + ngrams[:, -1]
        key_order = np.argsort(keys, kind="stable")
        self._check_unique(keys, key_order, first_line)
        table.keys.append(keys[key_order])
        table.log10.append(log10[key_order])
        table.backoff.append(backoff[key_order])

    def _check_unique(self, keys: np.ndarray, key_order: np.ndarray, first_line: int) -> None:
        """Check that the n-grams of an order are distinct.

        Args:
            keys: keys of the n-grams.
            key_order: indices that sort the keys.
            first_line: int, number of the line with the first n-gram.

        Raises:
            ValueError: If an n-gram is repeated; the message names its line.
        """
        if len(repeated_positions := np.flatnonzero(np.diff(keys[key_order]) == 0)):
            raise ValueError(
                f"{self.path}, line {first_line + key_order[repeated_positions + 1].min()} repeats an n-gram."
            )

    def _read_line(self) -> bytes:
        """Read the next line, and return it without surrounding spaces; the result is empty at the end of the file."""
        self.line = self.file.readline()
        self.number += 1
        return self.line.strip()

    def _read_filled_line(self) -> bytes:
        """Read up to the next line that is not blank, and return it without surrounding spaces.

        The result is empty at the end of the file.
        """
        while not self._read_line() and self.line:
            pass
        return self.line.strip()

    def _expect(self, text: str) -> None:
        """Raise a ValueError if the current line is not `text`."""
        if self.line.strip() != text.encode():
            raise self._make_error(f"expected {text}")

    def _decode(self, word: bytes) -> str:
        """Decode a word; raise a ValueError if it is not UTF-8."""
        try:
            return word.decode()
        except UnicodeDecodeError:
            raise self._make_error(f"{word!r} is not UTF-8") from None

    def _make_error(self, message: str) -> ValueError:
        """Return an error with the path, number and content of the current line."""
        content = repr(self.line.strip().decode(errors="replace"))[:60] if self.line else "the end of the file"
        return ValueError(f"{self.path}, line {self.number} ({content}): {message}.")
