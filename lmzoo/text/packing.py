"""From token ids of one or two segments to one row with special tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class Packing:
    """How a family joins segments: `start A end`, or `start A between B end`.

    Attributes:
        start: token before the first segment; "" for none.
        end: token after the last one; "" for none.
        between: tokens between two segments.
        segments: whether the family tells the segments apart by `segment_ids`; `between` belongs to the first.
    """

    start: str
    end: str
    between: tuple[str, ...]
    segments: bool

    def overhead(self, pair: bool) -> int:
        """How many special tokens a row of one segment, or of a pair, holds."""
        return bool(self.start) + bool(self.end) + (len(self.between) if pair else 0)


def truncate_pair(len_a: np.ndarray, len_b: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths after removing tokens from the end of the longer segment, the second on ties, until both fit.

    This is the closed form of the one-token-at-a-time loop of BERT's fine-tuning code.

    Args:
        len_a: int array (n,), lengths of the first segments.
        len_b: int array (n,), lengths of the second segments.
        budget: int, tokens for both together.

    Returns:
        Two int arrays (n,).

    Example:

    ```python
    import numpy as np
    from lmzoo.text.packing import truncate_pair

    truncate_pair(np.array([7]), np.array([9]), 5)  # ([3], [2])
    ```
    """
    over = len_a + len_b > budget
    half = (budget + 1) // 2
    short_a = np.minimum(len_a, np.maximum(budget - len_b, half))
    return np.where(over, short_a, len_a), np.where(over, budget - short_a, len_b)


class Encoded(ABC):
    """Examples in the form in which they are batched."""

    @property
    @abstractmethod
    def lengths(self) -> np.ndarray:
        """Int64 (n,), the width that each example needs."""

    @abstractmethod
    def select(self, rows: Any) -> Self:
        """The given examples, in the given order.

        Args:
            rows: int array (m,).
        """

    def cut_before(self, row: int) -> int:
        """Where to part the rows, at `row` or before it, for no example to end up on both sides.

        Args:
            row: int, index of a row.
        """
        return row

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.lengths)

    def __getitem__(self, rows: slice) -> Self:
        """The examples of a slice."""
        return self.select(np.arange(len(self))[rows])


@dataclass(frozen=True)
class EncodedTexts(Encoded):
    """Packed rows of different lengths, stored without padding.

    Attributes:
        token_ids: int32 (total,), all rows one after another; (total, W) where a token is a row of characters. Of rows
            in a file (`lmzoo.data.corpora.TokenCorpus`) read-only, and maybe of a smaller unsigned type.
        sequence_splits: int64 (n + 1,), row i is `token_ids[sequence_splits[i]:sequence_splits[i + 1]]`.
        second: int32 (n,), index within the row of the second segment's first token; the row's length if there is none.
        truncated: number of texts that were cut to fit.
    """

    token_ids: np.ndarray
    sequence_splits: np.ndarray
    second: np.ndarray
    truncated: int = 0

    @property
    def lengths(self) -> np.ndarray:
        """Int64 (n,), tokens of each row."""
        return np.diff(self.sequence_splits)

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """Int64 (m,), tokens of some rows, without a look at the others.

        Args:
            rows: int array (m,), not negative.
        """
        return self.sequence_splits[rows + 1] - self.sequence_splits[rows]

    def select(self, rows: Any) -> EncodedTexts:
        """The given rows, in the given order.

        Args:
            rows: int array (m,).
        """
        rows = np.asarray(rows, dtype="int64")
        lengths = self.lengths_of(rows)
        splits = np.concatenate([[0], np.cumsum(lengths)])
        index = np.repeat(self.sequence_splits[rows] - splits[:-1], lengths) + np.arange(splits[-1])
        return EncodedTexts(self.token_ids[index], splits, self.second[rows])

    def padded(self, rows: np.ndarray, length: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Some rows as a rectangle.

        Args:
            rows: int array (b,).
            length: int, width of the rectangle; no row is longer.
            pad_id: int, id at padding.

        Returns:
            `token_ids` (b, length) or (b, length, W) and `padding_mask` (b, length), both int32.

        Raises:
            ValueError: if a row is longer than `length`.
        """
        lengths = self.lengths_of(rows)
        if (longest := lengths.max(initial=0)) > length:
            raise ValueError(f"A row of {longest} tokens does not fit into {length}.")
        mask = np.arange(length) < lengths[:, None]  # (b, length)
        ids = np.full((*mask.shape, *self.token_ids.shape[1:]), pad_id, "int32")
        ids[mask] = self.select(rows).token_ids
        return ids, mask.astype("int32")


@dataclass(frozen=True)
class EncodedWords(EncodedTexts):
    """Packed rows of texts that were tokenised word by word.

    Attributes:
        texts: the texts; words joined by spaces where a text was a list of words.
        words: `(word, start, end)` of every word of each text, by characters of the text.
        first: int32 (total words,), index within its row of each word's first token; -1 for words that were cut off.
    """

    texts: tuple[str, ...] = ()
    words: tuple[tuple[tuple[str, int, int], ...], ...] = ()
    first: np.ndarray = field(default_factory=lambda: np.zeros(0, "int32"))

    @property
    def word_splits(self) -> np.ndarray:
        """Int64 (n + 1,), the words of row i are `first[word_splits[i]:word_splits[i + 1]]`."""
        return np.cumsum([0, *map(len, self.words)])
