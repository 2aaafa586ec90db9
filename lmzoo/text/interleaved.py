"""Interleaving of batches of several kinds, evenly spaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lmzoo.common.tensor_types import Tensors
from lmzoo.text.batching import Batches, LengthBatches


def choose_next_part(rates: np.ndarray, done: np.ndarray) -> int:
    """Return the index of the part that supplies the next batch.

    Turn j of a part is at the time (j + 0.5) / rate, so that the turns of each part are evenly spaced. The part
    with the earliest turn is next.

    Args:
        rates: float (K,), relative number of turns of each of the K parts.
        done: int (K,), number of turns that each part has had.
    """
    return int(np.argmin((done + 0.5) / rates))


def count_turns(rates: np.ndarray, total: int) -> np.ndarray:
    """Return the number of turns of each part among the first `total` turns: int64 (K,) for K `rates`."""
    last_turn_time = max(0, total - len(rates)) / rates.sum()  # a lower bound
    num_done = np.floor(rates * last_turn_time + 0.5).astype("int64")
    while num_done.sum() < total:
        num_done[choose_next_part(rates, num_done)] += 1
    return num_done


class Interleaved(Batches):
    """An endless stream of batches from several parts, with the batches of each part evenly spaced.

    The numbers of batches are proportional to `rates`. Each part has its own epochs.

    Args:
        parts: list of `LengthBatches`, the batches of each part.
        rates: relative number of batches of each part.
    """

    def __init__(self, parts: Sequence[LengthBatches], rates: Sequence[float]) -> None:
        super().__init__()
        self.parts = parts
        self.rates = np.asarray(rates, "float64")

    @property
    def seed(self) -> tuple[int, ...]:
        """Seed of all parts."""
        return self.parts[0].seed

    @seed.setter
    def seed(self, seed: tuple[int, ...]) -> None:
        for part in self.parts:
            part.seed = seed

    @property
    def num_batches(self) -> None:
        """None, since the stream is endless."""

    def batches(self) -> Iterator[Tensors]:
        """Return an endless iterator over batches."""
        return self.batches_from(0)

    def batches_from(self, step: int) -> Iterator[Tensors]:
        num_done = count_turns(self.rates, step)
        iterators = [
            part.batches_from(int(first_batch)) for part, first_batch in zip(self.parts, num_done, strict=True)
        ]
        while True:
            part_index = choose_next_part(self.rates, num_done)
            num_done[part_index] += 1
            yield next(iterators[part_index])

    def identity(self) -> dict[str, object]:
        """Return the values that identify the batches in a saved run: the identities and the rates of all parts."""
        identities = [(i, part.identity()) for i, part in enumerate(self.parts, 1)]
        rates = {"share of batches": (self.rates / self.rates.sum()).round(9).tolist()}
        return rates | {f"{name} (part {i})": value for i, identity in identities for name, value in identity.items()}
