"""Masked-LM corruption, drawn anew for every batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Masking:
    """BERT's masking (Devlin et al., 2019, section 3.1), dynamic as in RoBERTa (Liu et al., 2019).

    Of a row of n tokens, `max(1, round(n · probability))` are predicted. Each is replaced by the mask token with
    probability 0.8, by a uniformly drawn token with 0.1, and left as it is with 0.1.

    Attributes:
        probability: share of positions to predict; special tokens count in n but are never chosen.
        whole_word: whether to choose all pieces of a word together; a word that would exceed the number is skipped.
    """

    probability: float = 0.15
    whole_word: bool = False

    def slots(self, length: int) -> int:
        """Predictions that a row of `length` tokens holds at the most."""
        return max(1, round(length * self.probability))

    def choose(
        self,
        candidates: np.ndarray,
        lengths: np.ndarray,
        word_starts: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Chooses positions to predict.

        Args:
            candidates: bool (B, T), where a token may be chosen.
            lengths: int (B,), tokens of each row, special ones included.
            word_starts: bool (B, T), where a token begins a word.
            rng: source of randomness.

        Returns:
            `positions` int32 (B, M), rising in each row and padded with 0, and `chosen` bool (B, M). M is
            `slots(T)`.
        """
        width = candidates.shape[1]
        slots = self.slots(width)
        wanted = np.maximum(1, np.rint(lengths * self.probability).astype("int64"))  # (B,)
        if self.whole_word:
            picked = np.stack(
                [
                    _pick_words(row, starts, want, rng)
                    for row, starts, want in zip(candidates, word_starts, wanted, strict=True)
                ]
            )
        else:
            noise = np.where(candidates, rng.random(candidates.shape), 2.0)
            rank = noise.argsort(axis=1).argsort(axis=1)  # (B, T)
            picked = (rank < wanted[:, None]) & candidates
        # Stable sort of "not picked": the picked positions first, in rising order.
        positions = np.argsort(~picked, axis=1, kind="stable")[:, :slots]  # (B, M)
        chosen = np.take_along_axis(picked, positions, axis=1)
        return np.where(chosen, positions, 0).astype("int32"), chosen

    def corrupt(
        self, targets: np.ndarray, chosen: np.ndarray, mask_id: int, vocabulary_size: int, rng: np.random.Generator
    ) -> np.ndarray:
        """What stands at the chosen positions instead of `targets`, int (B, M)."""
        draw = rng.random(targets.shape)
        random_ids = rng.integers(vocabulary_size, size=targets.shape)
        replaced = np.where(draw < 0.8, mask_id, np.where(draw < 0.9, random_ids, targets))
        return np.where(chosen, replaced, targets)


def _pick_words(candidates: np.ndarray, starts: np.ndarray, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """Bool (T,): pieces of randomly ordered words, skipping words that no longer fit."""
    places = np.flatnonzero(candidates)
    picked = np.zeros(len(candidates), bool)
    if not len(places):
        return picked
    # A continuation opens a group of its own where no candidate precedes it.
    opens = starts[places] | (np.diff(places, prepend=-2) != 1)
    words = np.split(places, np.flatnonzero(opens)[1:])
    left = wanted
    for index in rng.permutation(len(words)):
        if len(words[index]) <= left:
            picked[words[index]] = True
            left -= len(words[index])
            if not left:
                break
    return picked
