"""Batches of several kinds, interleaved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lmzoo.tensor_types import Tensors
from lmzoo.text.batching import Batches, LengthBatches


class Interleaved(Batches):
    """An endless sequence of batches of several parts, with those of each part evenly spread.

    Of `sum(counts)` batches so many are from each part, which has its own epochs.
    """

    def __init__(self, parts: Sequence[LengthBatches], counts: Sequence[int]) -> None:
        super().__init__()
        self.parts = parts
        times = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        self._turns = np.repeat(np.arange(len(parts)), counts)[np.argsort(times, kind="stable")]

    @property
    def seed(self) -> tuple[int, ...]:
        """The seed of all parts."""
        return self.parts[0].seed

    @seed.setter
    def seed(self, seed: tuple[int, ...]) -> None:
        for part in self.parts:
            part.seed = seed

    @property
    def num_batches(self) -> int:
        """Number of batches until the order of the parts repeats."""
        return len(self._turns)

    def batches(self) -> Iterator[Tensors]:
        """The batches of all epochs."""
        return self.batches_from(0)

    def batches_from(self, step: int) -> Iterator[Tensors]:
        rounds, first = divmod(step, len(self._turns))
        every = np.bincount(self._turns, minlength=len(self.parts))
        done = rounds * every + np.bincount(self._turns[:first], minlength=len(self.parts))
        streams = [part.batches_from(int(count)) for part, count in zip(self.parts, done, strict=True)]
        while True:
            for turn in self._turns[first:]:
                yield next(streams[turn])
            first = 0

    def identity(self) -> dict[str, object]:
        """The identity of each part, and how many batches are from each; see `Batches`."""
        of_parts = [(i, part.identity()) for i, part in enumerate(self.parts, 1)]
        counts = {"number of batches": np.bincount(self._turns).tolist()}
        return counts | {f"{name} (part {i})": value for i, found in of_parts for name, value in found.items()}
