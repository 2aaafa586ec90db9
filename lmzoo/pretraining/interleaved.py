"""Batches of several kinds in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lmzoo.text.batching import Batches, LengthBatches


class Interleaved(Batches):
    """Batches of several parts, each part's spread evenly over the training, without end.

    Args:
        parts: where batches come from; each goes through its own epochs.
        counts: of each part, how many batches there are in `sum(counts)`.
    """

    def __init__(self, parts: Sequence[LengthBatches], counts: Sequence[int]) -> None:
        super().__init__()
        self.parts = parts
        times = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        self._turns = np.repeat(np.arange(len(parts)), counts)[np.argsort(times, kind="stable")]

    @property
    def seed(self) -> tuple[int, ...]:
        """That of all parts."""
        return self.parts[0].seed

    @seed.setter
    def seed(self, seed: tuple[int, ...]) -> None:
        for part in self.parts:
            part.seed = seed

    @property
    def num_batches(self) -> int:
        """Of all turns."""
        return len(self._turns)

    def batches(self) -> Iterator[Any]:
        """Of all epochs."""
        return self.batches_from(0)

    def batches_from(self, step: int) -> Iterator[Any]:
        """See `Batches`."""
        rounds, first = divmod(step, len(self._turns))
        every = np.bincount(self._turns, minlength=len(self.parts))
        done = rounds * every + np.bincount(self._turns[:first], minlength=len(self.parts))
        streams = [part.batches_from(int(count)) for part, count in zip(self.parts, done, strict=True)]
        while True:
            for turn in self._turns[first:]:
                yield next(streams[turn])
            first = 0

    def identity(self) -> dict[str, Any]:
        """That of each part, and how many batches there are of each."""
        of_parts = [(i, part.identity()) for i, part in enumerate(self.parts, 1)]
        counts = {"number of batches": np.bincount(self._turns).tolist()}
        return counts | {f"{name} (part {i})": value for i, found in of_parts for name, value in found.items()}
