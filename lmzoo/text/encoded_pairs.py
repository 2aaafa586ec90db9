"""Tokenized sources with their targets, each a sequence of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lmzoo.text.packing import Encoded, EncodedTexts, Indices


@dataclass(frozen=True)
class EncodedPairs(Encoded):
    """Sources and the targets that a model learns to write from them.

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
