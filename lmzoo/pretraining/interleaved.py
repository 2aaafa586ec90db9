"""Batches of several kinds, and sequences of several texts, interleaved."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.common.tensor_types import Tensors
from lmzoo.data.corpora.sequence_storage import join_blocks
from lmzoo.data.corpora.tokenized_documents import splits_of
from lmzoo.text import EncodedTexts
from lmzoo.text.batching import Batches, LengthBatches

_BATCHES = 50  # of a mixture that are drawn together


def next_turn(rates: np.ndarray, done: np.ndarray) -> int:
    """Whose turn is next, of parts with these rates, float (K,), that had so many turns before, int (K,).

    Turn j of a part is at the time (j + 0.5) / rate, so that those of each part are evenly spread.
    """
    return int(np.argmin((done + 0.5) / rates))


def turns_of_each(rates: np.ndarray, total: int) -> np.ndarray:
    """Return how many of the first `total` turns each part has: int64 (K,)."""
    sure = max(0, total - len(rates)) / rates.sum()  # a time that they reach
    done = np.floor(rates * sure + 0.5).astype("int64")
    while done.sum() < total:
        done[next_turn(rates, done)] += 1
    return done


class Interleaved(Batches):
    """An endless sequence of batches of several parts, with those of each part evenly spread.

    The numbers of batches are in proportion to `rates`; each part has its own epochs.
    """

    def __init__(self, parts: Sequence[LengthBatches], rates: Sequence[float]) -> None:
        super().__init__()
        self.parts = parts
        self.rates = np.asarray(rates, "float64")

    @property
    def seed(self) -> tuple[int, ...]:
        """The seed of all parts."""
        return self.parts[0].seed

    @seed.setter
    def seed(self, seed: tuple[int, ...]) -> None:
        for part in self.parts:
            part.seed = seed

    @property
    def num_batches(self) -> None:
        """None: there is no end."""

    def batches(self) -> Iterator[Tensors]:
        """Return the batches of all epochs."""
        return self.batches_from(0)

    def batches_from(self, step: int) -> Iterator[Tensors]:
        done = turns_of_each(self.rates, step)
        streams = [part.batches_from(int(count)) for part, count in zip(self.parts, done, strict=True)]
        while True:
            turn = next_turn(self.rates, done)
            done[turn] += 1
            yield next(streams[turn])

    def identity(self) -> dict[str, object]:
        """Return the identity of each part, and their rates; see `Batches`."""
        of_parts = [(i, part.identity()) for i, part in enumerate(self.parts, 1)]
        rates = {"share of batches": (self.rates / self.rates.sum()).round(9).tolist()}
        return rates | {f"{name} (part {i})": value for i, found in of_parts for name, value in found.items()}


class MixedBatches(LengthBatches):
    """Endless full batches of sequences of several texts, which are read at different rates.

    Each text is read in a new order each time. An epoch is 50 batches: their sequences are drawn together, and those of
    similar length share a batch.

    Args:
        batches: all sequences, text after text.
        counts: number of sequences of each text.
        rates: numbers of sequences of each text are in proportion to these.
    """

    def __init__(self, batches: LengthBatches, counts: Sequence[int], rates: Sequence[float]) -> None:
        self.splits = splits_of(counts)
        self.rates = np.asarray(rates, "float64")
        self._orders: dict[int, tuple[tuple[int, ...], np.ndarray]] = {}
        super().__init__(
            batches.lengths, batches.make_batch, batches.batch_size, batches.buckets.tolist(), seed=batches.seed
        )

    def __len__(self) -> int:
        """Return number of batches of an epoch."""
        return _BATCHES

    def _plan(self, epoch: int) -> list[np.ndarray]:
        size, rng = self.batch_size, np.random.default_rng((*self.seed, epoch))
        drawn = len(self) * size
        bounds = zip(*(turns_of_each(self.rates, count * drawn) for count in (epoch, epoch + 1)), strict=True)
        index = np.concatenate([self._stream(text, *map(int, bound)) for text, bound in enumerate(bounds)])
        index = rng.permutation(index)
        index = index[np.argsort(self.lengths[index], kind="stable")]
        return [index[begin : begin + size] for begin in rng.permutation(range(0, drawn, size))]

    def _stream(self, text: int, first: int, last: int) -> np.ndarray:
        """Return the sequences from number `first` up to `last` of those that the repeated reading of a text yields."""
        begin, count = self.splits[text], int(self.splits[text + 1] - self.splits[text])
        found = [np.zeros(0, "int64")]
        while first < last:
            reading, place = divmod(first, count)
            key = (*self.seed, text, reading, 1)
            if self._orders.get(text, ((), None))[0] != key:
                self._orders[text] = key, np.random.default_rng(key).permutation(count)
            found.append(begin + self._orders[text][1][place : place + last - first])
            first += len(found[-1])
        return np.concatenate(found)

    def identity(self) -> dict[str, object]:
        """Return that of the sequences, and what is from each text; see `Batches`."""
        share = (self.rates / self.rates.sum()).round(9).tolist()
        return {**super().identity(), "number of sequences": self.splits.tolist(), "share of sequences": share}


def join_sequences(sequences: Sequence[EncodedTexts], folder: Path) -> EncodedTexts:
    """Join sequences, with their tokens in an unnamed file in `folder`."""
    flat, splits = join_blocks(((part.token_ids, part.lengths) for part in sequences), folder)
    joined: dict[str, Any] = {"token_ids": flat, "sequence_splits": splits}
    for name, value in vars(sequences[0]).items():
        if name not in joined and isinstance(value, np.ndarray):  # one for each sequence
            joined[name] = np.concatenate([getattr(part, name) for part in sequences])
    return dataclasses.replace(sequences[0], **joined)
