"""Span corruption, T5's pre-training objective: the model writes spans of tokens that were dropped from its input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmzoo.common.arguments import is_number, require
from lmzoo.text.packing import EncodedPairs, EncodedTexts, ranges


@dataclass(frozen=True)
class SpanCorruption:
    """T5's span corruption (Raffel et al., 2020, section 3.1.4, https://arxiv.org/abs/1910.10683).

    In a sequence of n tokens, `round(n · probability)` are dropped, at least one and at most n - 1. They form
    `round(dropped / mean_length)` spans, at least one and at most as many as there are remaining tokens, which separate
    the spans. The lengths of the spans, and of the parts between them, are drawn uniformly from all divisions into
    positive lengths. As in T5's code (`random_spans_noise_mask`), a sequence begins with remaining tokens and ends with
    a span.

    In the source, each span is replaced by one sentinel token: the first span by the first sentinel, and so on. The
    target lists the spans, each after its sentinel, and ends with one more sentinel, as in the paper. An end token
    follows the source and the target.

    Attributes:
        probability: float in (0, 1], fraction of tokens to drop.
        mean_length: float, at least 1, mean number of tokens in a span.

    Raises:
        ValueError: If an attribute is out of range.

    Example:

    ```python
    from lmzoo.text import SpanCorruption

    corruption = SpanCorruption()
    length = corruption.text_length(512)  # 568 tokens of text
    corruption.source_length(length), corruption.target_length(length)  # (512, 115)
    ```
    """

    probability: float = 0.15
    mean_length: float = 3.0

    def __post_init__(self) -> None:
        is_valid = is_number(self.probability, 0, 1) and self.probability > 0
        require(is_valid, "probability", "a number in (0, 1]", self.probability)
        is_valid = is_number(self.mean_length, 1) and self.mean_length < math.inf
        require(is_valid, "mean_length", "a finite number of at least 1", self.mean_length)

    def counts(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of dropped tokens and of spans in each of b texts: two int64 arrays (b,).

        Args:
            lengths: int (b,), number of tokens of each text, at least 2.
        """
        num_dropped = np.clip(np.rint(lengths * self.probability).astype("int64"), 1, lengths - 1)  # (b,)
        num_spans = np.clip(np.rint(num_dropped / self.mean_length).astype("int64"), 1, lengths - num_dropped)  # (b,)
        return num_dropped, num_spans

    def source_length(self, length: int) -> int:
        """Return the number of tokens in the source of a text of `length` tokens, with sentinels and end token."""
        num_dropped, num_spans = self.counts(np.array([length]))
        return int(length - num_dropped[0] + num_spans[0] + 1)

    def target_length(self, length: int) -> int:
        """Return the number of tokens in the target of a text of `length` tokens, with sentinels and end token."""
        num_dropped, num_spans = self.counts(np.array([length]))
        return int(num_dropped[0] + num_spans[0] + 2)

    def text_length(self, max_length: int) -> int:
        """Return the length of the longest texts whose sources and targets have at most `max_length` tokens.

        Raises:
            ValueError: If `max_length` is too small for a text of two tokens.
        """
        min_length = self.target_length(2)
        require(max_length >= min_length, "sequence_length", f"at least {min_length} for span corruption", max_length)
        length = 2
        while max(self.source_length(length + 1), self.target_length(length + 1)) <= max_length:
            length += 1
        return length

    def draw(self, lengths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw the lengths of the parts of b texts, alternately remaining tokens and spans: int64 (parts,).

        Each text begins with remaining tokens and ends with a span.

        Args:
            lengths: int (b,), number of tokens of each text, at least 2.
            rng: numpy generator, source of randomness.
        """
        num_dropped, num_spans = self.counts(lengths)
        part_lengths = np.empty(2 * num_spans.sum(), "int64")
        part_lengths[1::2] = _divide(num_dropped, num_spans, rng)
        part_lengths[::2] = _divide(lengths - num_dropped, num_spans, rng)
        return part_lengths

    def corrupt(
        self, texts: EncodedTexts, sentinel_ids: Sequence[int], end_id: int, rng: np.random.Generator
    ) -> EncodedPairs:
        """Drop spans of tokens, and return the sources and targets.

        Args:
            texts: texts of at least two tokens, without special tokens.
            sentinel_ids: ids of the sentinels in their order in texts, at least one more than the largest number of
                spans in a text.
            end_id: id of the end token.
            rng: numpy generator, source of randomness.
        """
        num_dropped, num_spans = self.counts(texts.lengths)  # (b,)
        part_lengths = self.draw(texts.lengths, rng)  # (parts,)
        part_indices = np.repeat(np.arange(len(part_lengths)), part_lengths)  # (tokens,)
        begins_part = np.diff(part_indices, prepend=-1) > 0  # (tokens,)
        in_span = part_indices % 2 == 1  # (tokens,)
        all_sentinels = np.asarray(sentinel_ids, "int32")
        span_sentinels = all_sentinels[ranges(np.zeros_like(num_spans), num_spans)]  # (parts / 2,)
        ids = texts.token_ids  # (tokens,)
        ids_with_sentinels = np.where(begins_part, span_sentinels[part_indices // 2], ids)  # (tokens,)
        # In the source, the sentinel takes the place of a span's first token. In the target, it comes before the span,
        # in the place of the first of the remaining tokens.
        source_ids = np.where(in_span, ids_with_sentinels, ids)[~in_span | begins_part]
        target_ids = np.where(in_span, ids, ids_with_sentinels)[in_span | begins_part]
        return EncodedPairs(
            _append(source_ids, texts.lengths - num_dropped + num_spans, np.full((len(num_spans), 1), end_id)),
            _append(
                target_ids,
                num_dropped + num_spans,
                np.stack([all_sentinels[num_spans], np.full(len(num_spans), end_id)], axis=1),
            ),
        )


def _divide(totals: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Divide each total into random positive integers, all divisions equally likely: int64 (sum of `counts`,).

    Args:
        totals: int (b,), the integers to divide.
        counts: int (b,), number of integers to divide each total into, from 1 to the total.
        rng: numpy generator, source of randomness.
    """
    positions = np.arange(totals.max())
    is_inside = (positions > 0) & (positions < totals[:, None])  # (b, longest)
    noise = np.full(is_inside.shape, 2.0)
    noise[is_inside] = rng.random(np.count_nonzero(is_inside))
    noise[:, 0] = -1  # every first part begins at 0
    is_part_start = noise.argsort(axis=1).argsort(axis=1) < counts[:, None]  # (b, longest)
    part_starts = np.flatnonzero(is_part_start[positions < totals[:, None]])
    return np.diff(part_starts, append=totals.sum())


def _append(token_ids: np.ndarray, lengths: np.ndarray, endings: np.ndarray) -> EncodedTexts:
    """Append tokens to each sequence, and return the sequences.

    Args:
        token_ids: int (total,), the tokens of all sequences.
        lengths: int64 (b,), number of tokens of each of b sequences.
        endings: int (b, k), the k tokens to append to each sequence.
    """
    num_appended = endings.shape[1]
    ids = np.insert(token_ids, np.repeat(np.cumsum(lengths), num_appended), endings.reshape(-1)).astype("int32")
    new_lengths = lengths + num_appended
    return EncodedTexts(ids, np.concatenate([[0], np.cumsum(new_lengths)]), new_lengths.astype("int32"))
