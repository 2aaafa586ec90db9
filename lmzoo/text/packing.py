"""Packs the token ids of one or two segments into one sequence with special tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

import numpy as np

Indices: TypeAlias = np.ndarray | Sequence[int]  # of integers, (m,)
LAST_SEGMENT = 2  # the segment id of `Packing.last`


@dataclass(frozen=True)
class Packing:
    """How a family joins segments: `start A end last`, or `start A between B end last`.

    Attributes:
        start: token before the first segment; "" for none.
        end: token after the last segment; "" for none.
        between: tokens between two segments.
        segments: whether the family distinguishes segments by `segment_ids`; `between` belongs to the first one.
        last: token at the very end, a segment of its own, whose id is 2; "" for none.
        zero_segments: whether the model takes `segment_ids` although its texts have no segments: they are all 0.

    Example: see `Preprocessor`.
    """

    start: str
    end: str
    between: tuple[str, ...]
    segments: bool
    last: str = ""
    zero_segments: bool = False

    @property
    def closing(self) -> tuple[str, ...]:
        """The tokens after the last segment."""
        return tuple(filter(None, (self.end, self.last)))

    def overhead(self, pair: bool) -> int:
        """Return number of special tokens in a sequence of one segment, or of a pair."""
        return bool(self.start) + len(self.closing) + (len(self.between) if pair else 0)


def truncate_pair(len_a: np.ndarray, len_b: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths (n,) after removing tokens from the longer segment's end, the second's on ties, to fit.

    This is the closed form of the one-token-at-a-time loop of BERT's fine-tuning code; `budget` is for both together.

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


def ranges(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return all `range(begin, begin + count)`, one after another: int64 (total,)."""
    ends = np.cumsum(counts)
    return np.repeat(begins - ends + counts, counts) + np.arange(counts.sum())


class Encoded(ABC):
    """Tokenized examples, ready to be put into batches."""

    @property
    @abstractmethod
    def lengths(self) -> np.ndarray:
        """Int64 (n,), the padded width that each example needs."""

    @abstractmethod
    def select(self, indices: Indices) -> Self:
        """Return the examples at int indices (m,), in the given order."""

    def cut_before(self, index: int) -> int:
        """Return the last place up to `index` where these can be cut in two without cutting an example."""
        return index

    def __len__(self) -> int:
        """Return number of examples."""
        return len(self.lengths)

    def __getitem__(self, indices: slice) -> Self:
        """Return the examples of a slice."""
        return self.select(np.arange(len(self))[indices])


@dataclass(frozen=True)
class EncodedTexts(Encoded):
    """Packed sequences of different lengths, stored without padding.

    Attributes:
        token_ids: int32 (total,), all sequences one after another; (total, W) if tokens are words of W characters. If
            they are in a file (`lmzoo.data.corpora.TokenCorpus`), read-only and possibly of a smaller unsigned type.
        sequence_splits: int64 (n + 1,), sequence i is `token_ids[sequence_splits[i]:sequence_splits[i + 1]]`.
        second: int32 (n,), index within the sequence of the second segment's first token; the length of the sequence if
            there is no second segment.
        truncated: number of texts that were truncated.
    """

    token_ids: np.ndarray
    sequence_splits: np.ndarray
    second: np.ndarray
    truncated: int = 0

    @property
    def lengths(self) -> np.ndarray:
        """Int64 (n,), tokens of each sequence."""
        return np.diff(self.sequence_splits)

    def lengths_of(self, indices: np.ndarray) -> np.ndarray:
        """Return int64 (m,), tokens of some sequences; the others are not read."""
        return self.sequence_splits[indices + 1] - self.sequence_splits[indices]

    def select(self, indices: Indices) -> EncodedTexts:
        indices = np.asarray(indices, dtype="int64")
        lengths = self.lengths_of(indices)
        splits = np.concatenate([[0], np.cumsum(lengths)])
        tokens = self.token_ids[ranges(self.sequence_splits[indices], lengths)]
        return EncodedTexts(tokens, splits, self.second[indices])

    def by_sequence(self, values: np.ndarray) -> np.ndarray:
        """Split values of all tokens, (total,), into an object array with one array for each sequence."""
        result = np.empty(len(self), object)
        result[:] = np.split(values, self.sequence_splits[1:-1])
        return result

    def padded(self, indices: np.ndarray, length: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Return some sequences, at int indices (b,), padded to one length with `pad_id`.

        Returns:
            `token_ids` (b, length) or (b, length, W) and `padding_mask` (b, length), both int32.

        Raises:
            ValueError: if a sequence is longer than `length`.
        """
        lengths = self.lengths_of(indices)
        if (longest := lengths.max(initial=0)) > length:
            raise ValueError(f"A sequence of {longest} tokens does not fit into {length}.")
        mask = np.arange(length) < lengths[:, None]  # (b, length)
        ids = np.full((*mask.shape, *self.token_ids.shape[1:]), pad_id, "int32")
        ids[mask] = self.select(indices).token_ids
        return ids, mask.astype("int32")


@dataclass(frozen=True)
class EncodedWords(EncodedTexts):
    """Packed sequences of texts that were tokenized word by word.

    Attributes:
        texts: the texts; a text that was a list of words is joined by spaces.
        words: `(word, start, end)` of every word of each text; offsets count characters.
        first: int32 (total words,), index within its sequence of each word's first token; -1 for words that were
            truncated.
    """

    texts: tuple[str, ...] = ()
    words: tuple[tuple[tuple[str, int, int], ...], ...] = ()
    first: np.ndarray = field(default_factory=lambda: np.zeros(0, "int32"))

    @property
    def word_splits(self) -> np.ndarray:
        """Int64 (n + 1,), the words of text i are `first[word_splits[i]:word_splits[i + 1]]`."""
        return np.cumsum([0, *map(len, self.words)])


@dataclass(frozen=True)
class EncodedPairs(Encoded):
    """Pairs of texts: sources and what a model learns to write from them, or texts that belong together.

    Attributes:
        sources: n sequences.
        targets: n sequences.
    """

    sources: EncodedTexts
    targets: EncodedTexts

    @property
    def lengths(self) -> np.ndarray:
        """Int64 (n,), tokens of the longer sequence of each pair."""
        return np.maximum(self.sources.lengths, self.targets.lengths)

    def select(self, indices: Indices) -> EncodedPairs:
        return EncodedPairs(self.sources.select(indices), self.targets.select(indices))
