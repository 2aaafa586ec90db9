"""A table of words and their vectors, which is read from a file or written to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmzoo.static_vectors.subwords import Subwords
from lmzoo.text.validate_text import clean_texts, warn

MAX_HIDDEN_DIM = 1 << 20  # a header with wider vectors is damaged
_CHECKED_ROWS = 65_536  # a check of all vectors at once would copy a large file into memory


@dataclass(frozen=True)
class VectorTable:
    """Words with their vectors, and vectors of character n-grams for other words.

    Attributes:
        words: V distinct strings.
        vectors: float32 (V, H), the vectors of the words.
        subwords: `Subwords`, the vectors of n-grams; None for vectors of words only.

    Example: see `read_vectors`.
    """

    words: Sequence[str]
    vectors: np.ndarray
    subwords: Subwords | None = None


def make_table(path: str | Path, words: Sequence[bytes], vectors: np.ndarray) -> VectorTable:
    """Return a table of the words in a file, decoded and without repetitions.

    The first vector of a repeated word is used, with a warning. Invalid UTF-8 becomes U+FFFD, with a warning.

    Args:
        path: path of the file, for messages.
        words: V words in UTF-8.
        vectors: float32 (V, H), the vectors of the words.

    Raises:
        ValueError: If there are no words, or a vector holds NaN or infinity; the message names its word.
    """
    decoded_words = clean_texts(words, "words")
    if not decoded_words:
        raise ValueError(f"{path} holds no word vectors.")
    if (row := find_invalid_vector(vectors)) is not None:
        word = decoded_words[row]
        raise ValueError(f"{path}: the vector of {word!r:.60} holds NaN or infinite numbers. The file is damaged.")
    first_row_by_word: dict[str, int] = {}
    for row, word in enumerate(decoded_words):
        first_row_by_word.setdefault(word, row)
    if len(first_row_by_word) == len(decoded_words):
        return VectorTable(decoded_words, vectors)
    num_repeated = len(decoded_words) - len(first_row_by_word)
    warn(f"{path} repeats {num_repeated} of {len(decoded_words)} words; the first vector of each is used.")
    return VectorTable([*first_row_by_word], vectors[[*first_row_by_word.values()]])


def find_invalid_vector(vectors: np.ndarray) -> int | None:
    """Return the index of the first vector that is not finite, or None if all are finite."""
    for start in range(0, len(vectors), _CHECKED_ROWS):
        is_finite = np.isfinite(vectors[start : start + _CHECKED_ROWS]).all(axis=1)
        if not is_finite.all():
            return start + int(np.argmin(is_finite))
    return None
