"""Token selection and corruption for masked language modeling."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from lmzoo.common.arguments import is_integer, is_number, require


@dataclass(frozen=True)
class Masking:
    """BERT's masking (Devlin et al., 2019, section 3.1), by default dynamic as in RoBERTa (Liu et al., 2019).

    In a sequence of n tokens, at most `max(1, round(n · probability))` are predicted. By default each is replaced by
    the mask token with probability 0.8 and by a token drawn uniformly from the whole vocabulary, including special
    tokens, with probability 0.1; otherwise it is unchanged. This is the rule of BERT's code. RoBERTa's code also
    predicts the tokens at the ends of sequences and sentences, and never draws an id below 4; here all families follow
    BERT.

    Attributes:
        probability: float, fraction of positions to predict; special tokens count in n but are never chosen.
        whole_word: bool, whether to choose all tokens of a word together; a word with more tokens than remain to be
            chosen is skipped.
        ngram: int, maximum number of neighboring words that are chosen together, 3 for ALBERT (Lan et al., 2020): k
            words have a probability proportional to 1/k. Fewer are chosen if they have more tokens than remain to be
            chosen, and none if one of them has been chosen already. Needs `whole_word`.
        rounding: rounding of n · `probability`: "nearest", with halves to even, or "random", up or down such that the
            average is exact, as in RoBERTa's code.
        dynamic: bool, whether a sequence is masked anew in every epoch. If not, it always has the same mask, as in
            BERT's code, which masked every document ten times: see `passes` of `lmzoo.data.corpora.segment_pairs`.
        masked: float, fraction of the chosen tokens to replace by the mask token, 0.8 in BERT.
        random: float, fraction of the chosen tokens to replace by a random token, 0.1 in BERT. The remaining chosen
            tokens are unchanged.
        geometric: float, parameter of SpanBERT's geometric distribution (Joshi et al., 2020, section 3.1): k has a
            probability proportional to geometric · (1 - geometric)^(k - 1) instead of 1/k, and the tokens of a span of
            k words are all replaced by mask tokens, all replaced by random tokens, or all unchanged. 0.2 for SpanBERT,
            with an `ngram` of 10; None to replace tokens independently. Neighboring spans count as one span.

    Raises:
        ValueError: If a number is out of range, `ngram` is above 1 without `whole_word`, `rounding` is unknown, or the
            sum of `masked` and `random` exceeds 1.

    Example:

    ```python
    from lmzoo.text import Masking

    Masking(whole_word=True, ngram=3).slots(512)  # 77
    ```
    """

    probability: float = 0.15
    whole_word: bool = False
    ngram: int = 1
    rounding: str = "nearest"
    dynamic: bool = True
    masked: float = 0.8
    random: float = 0.1
    geometric: float | None = None

    def __post_init__(self) -> None:
        for name in ("probability", "masked", "random"):
            require(is_number(getattr(self, name), 0, 1), name, "a number from 0 to 1", getattr(self, name))
        if not is_integer(self.ngram, 1) or (self.ngram > 1 and not self.whole_word):
            raise ValueError(f"`ngram` counts words, from 1; above 1 it needs `whole_word=True`. Got {self}.")
        if self.geometric is not None:
            is_valid = is_number(self.geometric, 0, 1) and 0 < self.geometric < 1
            require(is_valid, "geometric", "a number between 0 and 1", self.geometric)
        require(self.rounding in ("nearest", "random"), "rounding", "'nearest' or 'random'", self.rounding)
        if self.masked + self.random > 1:
            raise ValueError(f"`masked` and `random` must be at most 1 together, got {self.masked} and {self.random}.")

    def with_spans(self) -> Masking:
        """Return this masking with SpanBERT's spans, of at most 10 words (Joshi et al., 2020, section 3.1)."""
        return replace(self, whole_word=True, ngram=10, geometric=0.2)

    def slots(self, length: int) -> int:
        """Return the maximum number of predictions in a sequence of `length` tokens."""
        exact_count = length * self.probability
        return max(1, math.ceil(exact_count) if self.rounding == "random" else round(exact_count))

    def choose(
        self,
        candidates: np.ndarray,
        lengths: np.ndarray,
        word_starts: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose the positions to predict, independently of the amount of padding.

        Args:
            candidates: bool (B, T), tokens that may be chosen, for B sequences padded to width T.
            lengths: int (B,), number of tokens of each sequence, including special tokens.
            word_starts: bool (B, T), tokens that begin a word.
            rng: numpy generator, source of randomness.

        Returns:
            `positions`, int32 (B, M), the chosen positions in ascending order, padded with 0; and `is_chosen`, bool
            (B, M), false at padding. M is `slots(T)`.
        """
        num_slots = self.slots(candidates.shape[1])
        exact_counts = lengths * self.probability  # (B,)
        rounded_counts = (
            np.floor(exact_counts + rng.random(len(exact_counts)))
            if self.rounding == "random"
            else np.rint(exact_counts)
        )
        chosen_counts = np.maximum(1, rounded_counts.astype("int64"))  # (B,)
        if self.whole_word:
            rows = zip(candidates, word_starts, chosen_counts, strict=True)
            weights = self._compute_length_weights()
            is_position_chosen = np.stack([_pick_words(*row, weights, rng) for row in rows])
        else:
            noise = np.full(candidates.shape, 2.0)
            # No number is drawn for padding, so that the padded width does not affect the choice.
            noise[candidates] = rng.random(np.count_nonzero(candidates))
            ranks = noise.argsort(axis=1).argsort(axis=1)  # (B, T)
            is_position_chosen = (ranks < chosen_counts[:, None]) & candidates
        # Stable sort of "not chosen": the chosen positions first, in ascending order.
        positions = np.argsort(~is_position_chosen, axis=1, kind="stable")[:, :num_slots]  # (B, M)
        is_chosen = np.take_along_axis(is_position_chosen, positions, axis=1)
        return np.where(is_chosen, positions, 0).astype("int32"), is_chosen

    def _compute_length_weights(self) -> np.ndarray:
        """Return weights proportional to the probabilities of choosing 1 to `ngram` words together: float (ngram,)."""
        lengths = np.arange(1, self.ngram + 1)
        return 1 / lengths if self.geometric is None else (1 - self.geometric) ** (lengths - 1)

    def corrupt(
        self,
        targets: np.ndarray,
        chosen: np.ndarray,
        mask_id: int,
        vocabulary_size: int,
        rng: np.random.Generator,
        positions: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return `targets` with each chosen token masked, replaced by a random token or unchanged: int (B, M).

        Args:
            targets: int (B, M), ids of the tokens to replace.
            chosen: bool (B, M), whether each token is chosen; false at padding.
            mask_id: id of the mask token.
            vocabulary_size: int, number of token ids.
            rng: numpy generator, source of randomness.
            positions: int (B, M), the positions from `choose`; required with `geometric`, to find the spans.

        Raises:
            ValueError: If `geometric` is set and `positions` is None.
        """
        num_chosen = np.count_nonzero(chosen)
        if self.geometric is None:
            draws = rng.random(num_chosen)
        elif positions is None:
            raise ValueError("With `geometric`, pass `positions`, as returned by `choose`: spans are found by them.")
        else:
            is_first = (span_offsets(positions, chosen) == 0)[chosen]  # (num_chosen,)
            draws = rng.random(np.count_nonzero(is_first))[np.cumsum(is_first) - 1]
        random_ids = rng.integers(vocabulary_size, size=num_chosen)
        corrupted_ids = targets.copy()
        corrupted_ids[chosen] = np.where(
            draws < self.masked, mask_id, np.where(draws < self.masked + self.random, random_ids, targets[chosen])
        )
        return corrupted_ids


def span_offsets(positions: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the offset of each chosen token in its span of neighboring chosen tokens: int (B, M), from 0.

    Args:
        positions: int (B, M), positions of the chosen tokens of each sequence, in ascending order, then padding.
        chosen: bool (B, M), false at padding, where the offsets are 0.
    """
    slot_indices = np.arange(positions.shape[1])
    continues_span = np.zeros(positions.shape, bool)
    continues_span[:, 1:] = (np.diff(positions, axis=1) == 1) & chosen[:, 1:]
    span_starts = np.maximum.accumulate(np.where(continues_span, 0, slot_indices), axis=1)  # (B, M)
    return slot_indices - span_starts


def _pick_words(
    candidates: np.ndarray, starts: np.ndarray, count: int, weights: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Choose random words of at most `count` tokens in total, and return whether each token is chosen: bool (T,).

    Args:
        candidates: bool (T,), tokens that may be chosen.
        starts: bool (T,), tokens that begin a word.
        count: int, maximum number of tokens to choose.
        weights: float (K,), proportional to the probabilities of choosing 1 to K words together.
        rng: numpy generator, source of randomness.
    """
    positions = np.flatnonzero(candidates)
    is_picked = np.zeros(len(candidates), bool)
    if not len(positions):
        return is_picked
    # A continuation without a candidate directly before it also begins a word.
    is_apart = np.diff(positions, prepend=-2) != 1
    first_indices = np.flatnonzero(starts[positions] | is_apart)  # (words,)
    order = rng.permutation(len(first_indices))
    # Word i is `positions[bounds[i]:bounds[i + 1]]`. Lists, since the loop would read arrays much more slowly.
    bounds = [*first_indices.tolist(), len(positions)]
    is_word_picked = [False] * len(first_indices)
    num_remaining = count
    span_lengths = _draw_lengths(is_apart[first_indices], weights, rng).tolist() if len(weights) > 1 else None
    for word_index in order.tolist():
        end_index = word_index + (span_lengths[word_index] if span_lengths else 1)
        while bounds[end_index] - bounds[word_index] > num_remaining:
            end_index -= 1
        if end_index == word_index or any(is_word_picked[word_index:end_index]):
            continue
        is_word_picked[word_index:end_index] = [True] * (end_index - word_index)
        is_picked[positions[bounds[word_index] : bounds[end_index]]] = True
        num_remaining -= bounds[end_index] - bounds[word_index]
        if not num_remaining:
            break
    return is_picked


def _draw_lengths(is_apart: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw, for each word, the number of words to choose together from this word on: int64 (words,).

    Args:
        is_apart: bool (words,), whether other tokens lie between a word and the previous word, so that these words are
            not chosen together.
        weights: float (K,), proportional to the probabilities of 1 to K words.
        rng: numpy generator, source of randomness.
    """
    run_indices = np.cumsum(is_apart)  # (words,)
    max_lengths = np.minimum(
        len(weights), np.searchsorted(run_indices, run_indices, side="right") - np.arange(len(run_indices))
    )  # (words,)
    cumulative_weights = np.cumsum(weights)  # (K,)
    lengths = 1 + np.searchsorted(
        cumulative_weights, rng.random(len(run_indices)) * cumulative_weights[max_lengths - 1], side="right"
    )
    return np.minimum(lengths, max_lengths)
