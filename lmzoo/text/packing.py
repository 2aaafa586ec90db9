"""Packing of one or two segments with special tokens, and containers of encoded examples."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

import numpy as np

Indices: TypeAlias = np.ndarray | Sequence[int]  # integers, (m,)
LAST_SEGMENT = 2  # segment id of `Packing.last`


@dataclass(frozen=True)
class Packing:
    """A family's rule for joining segments A and B: `start A end last`, or `start A between B end last`.

    Attributes:
        start: str, token before the first segment; "" for none.
        end: str, token after the last segment; "" for none.
        between: tuple of strings, tokens between two segments.
        segments: bool, whether `segment_ids` distinguish the segments; `between` belongs to the first segment.
        last: str, token at the very end, with the segment id 2; "" for none.
        zero_segments: bool, whether the model takes `segment_ids` that are all 0, since its texts have no segments. If
            `segments` is true as well, the task distinguishes the segments, and passes zeros to the model.

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
        """Tokens after the last segment."""
        return tuple(filter(None, (self.end, self.last)))

    def overhead(self, pair: bool) -> int:
        """Return the number of special tokens in a sequence of one segment or, if `pair`, of two."""
        return bool(self.start) + len(self.closing) + (len(self.between) if pair else 0)


def truncate_pair(len_a: np.ndarray, len_b: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of both segments after truncating each pair to `budget` tokens: two int arrays (n,).

    Tokens are removed from the end of the longer segment, or of the second segment on ties. This is the closed form of
    the one-token-at-a-time loop in BERT's fine-tuning code.

    Example:

    ```python
    import numpy as np
    from lmzoo.text.packing import truncate_pair

    truncate_pair(np.array([7]), np.array([9]), 5)  # ([3], [2])
    ```
    """
    is_too_long = len_a + len_b > budget
    half = (budget + 1) // 2
    shortened_a = np.minimum(len_a, np.maximum(budget - len_b, half))
    return np.where(is_too_long, shortened_a, len_a), np.where(is_too_long, budget - shortened_a, len_b)


def ranges(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the concatenation of `range(begin, begin + count)` for all `begins` and `counts`: int64 (total,)."""
    ends = np.cumsum(counts)
    return np.repeat(begins - ends + counts, counts) + np.arange(counts.sum())


def split_at(values: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """Split an array at the n + 1 boundaries `splits` into an object array of n arrays."""
    pieces = np.empty(len(splits) - 1, object)
    pieces[:] = np.split(values, splits[1:-1])
    return pieces


class Encoded(ABC):
    """Tokenized examples, ready for batching; an entry is an example, or a window of an example."""

    @property
    @abstractmethod
    def lengths(self) -> np.ndarray:
        """Padded width that each entry needs: int64 (n,)."""

    @abstractmethod
    def select(self, indices: Indices) -> Self:
        """Return the entries at `indices` in that order."""

    def cut_before(self, index: int) -> int:
        """Return the last index up to `index` at which the entries can be split without splitting an example."""
        return index

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.lengths)

    def __getitem__(self, indices: slice) -> Self:
        """Return the entries of a slice."""
        return self.select(np.arange(len(self))[indices])


@dataclass(frozen=True)
class EncodedTexts(Encoded):
    """Packed sequences of different lengths, stored without padding.

    Attributes:
        token_ids: int32 (total,), all sequences one after another; (total, W) if tokens are words of W characters. Ids
            in a file (`lmzoo.data.corpora.TokenCorpus`) are read-only, and may have a smaller unsigned type.
        sequence_splits: int64 (n + 1,), sequence i is `token_ids[sequence_splits[i]:sequence_splits[i + 1]]`.
        second: int32 (n,), index within the sequence of the second segment's first token; the length of the sequence if
            there is no second segment.
        truncated: int, number of texts that were truncated.
    """

    token_ids: np.ndarray
    sequence_splits: np.ndarray
    second: np.ndarray
    truncated: int = 0

    @classmethod
    def of_ids(cls, sequences: Sequence[Sequence[int]]) -> EncodedTexts:
        """Return sequences of token ids as `EncodedTexts` without second segments."""
        splits = np.cumsum([0, *map(len, sequences)], dtype="int64")
        token_ids = np.fromiter(itertools.chain.from_iterable(sequences), "int32", int(splits[-1]))
        return EncodedTexts(token_ids, splits, np.diff(splits).astype("int32"))

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each sequence: int64 (n,)."""
        return np.diff(self.sequence_splits)

    @property
    def token_counts(self) -> np.ndarray:
        """Number of tokens of each text, including special tokens: int64 (n,)."""
        return self.lengths

    def lengths_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each of m sequences at `indices`, reading only their splits: int64 (m,)."""
        return self.sequence_splits[indices + 1] - self.sequence_splits[indices]

    def select(self, indices: Indices) -> EncodedTexts:
        indices = np.asarray(indices, dtype="int64")
        lengths = self.lengths_of(indices)
        splits = np.concatenate([[0], np.cumsum(lengths)])
        tokens = self.token_ids[ranges(self.sequence_splits[indices], lengths)]
        return EncodedTexts(tokens, splits, self.second[indices])

    def by_sequence(self, values: np.ndarray) -> np.ndarray:
        """Split an array with one value per token into an object array with one array per sequence."""
        return split_at(values, self.sequence_splits)

    def padded(self, indices: np.ndarray, length: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sequences at `indices`, padded to `length` tokens with `pad_id`.

        Returns:
            For b indices, `token_ids`, (b, length) or (b, length, W), and `padding_mask`, (b, length), both int32.

        Raises:
            ValueError: If a sequence is longer than `length`.
        """
        lengths = self.lengths_of(indices)
        if (max_length := lengths.max(initial=0)) > length:
            raise ValueError(f"A sequence of {max_length} tokens does not fit into {length}.")
        mask = np.arange(length) < lengths[:, None]  # (b, length)
        ids = np.full((*mask.shape, *self.token_ids.shape[1:]), pad_id, "int32")
        ids[mask] = self.select(indices).token_ids
        return ids, mask.astype("int32")


@dataclass(frozen=True)
class EncodedWords(EncodedTexts):
    """Packed sequences of texts that were tokenized word by word.

    Attributes:
        texts: tuple of n strings; a text that was a list of words is joined by spaces.
        words: for each text, a tuple of `(word, start, end)`; offsets count characters.
        first: int32 (total words,), index of each word's first token within its sequence; -1 for words that were
            truncated.
    """

    texts: tuple[str, ...] = ()
    words: tuple[tuple[tuple[str, int, int], ...], ...] = ()
    first: np.ndarray = field(default_factory=lambda: np.zeros(0, "int32"))

    @property
    def word_splits(self) -> np.ndarray:
        """Boundaries of texts in `first`: text i has `first[word_splits[i]:word_splits[i + 1]]`; int64 (n + 1,)."""
        return np.cumsum([0, *map(len, self.words)])


@dataclass(frozen=True)
class EncodedPairs(Encoded):
    """Pairs of texts: sources with the targets that a model learns to write.

    Attributes:
        sources: `EncodedTexts`, the n sources.
        targets: `EncodedTexts`, the n targets.
    """

    sources: EncodedTexts
    targets: EncodedTexts

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of the longer sequence of each pair: int64 (n,)."""
        return np.maximum(self.sources.lengths, self.targets.lengths)

    def select(self, indices: Indices) -> EncodedPairs:
        return EncodedPairs(self.sources.select(indices), self.targets.select(indices))


@dataclass(frozen=True)
class EncodedGroups(Encoded):
    """Groups of texts that belong together, such as a query, its answer and texts that do not answer it.

    Attributes:
        columns: tuple of K `EncodedTexts`, n sequences each; the texts at one index are a group.
        ids: int64 (n, K), ids of the texts of each group, equal for equal texts; None to compare texts by their tokens.
    """

    columns: tuple[EncodedTexts, ...]
    ids: np.ndarray | None = None

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of the longest sequence of each group: int64 (n,)."""
        return np.max([column.lengths for column in self.columns], axis=0)

    def select(self, indices: Indices) -> EncodedGroups:
        ids = None if self.ids is None else self.ids[np.asarray(indices, "int64")]
        return EncodedGroups(tuple(column.select(indices) for column in self.columns), ids)
