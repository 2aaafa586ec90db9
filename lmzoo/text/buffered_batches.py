"""Batches of examples that do not fit into memory: a part of them at a time is shuffled and sorted by length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lmzoo.common.tensor_types import Tensors
from lmzoo.text.batching import LengthBatches, OrderedBatches, fitted_buckets

# As for `LengthBatches`: the lengths of some sequences, and what makes batches of them.
Encoded = tuple[np.ndarray, Callable[[np.ndarray, int, np.random.Generator], Tensors]]


class BufferedBatches(OrderedBatches):
    """Batches like those of `LengthBatches`, of a buffer full of examples after another.

    If one buffer holds all examples, the batches are the same.

    Args:
        read: `(epoch, first) -> buffers`, iterates over lists of examples, beginning with the example number `first` of
            an epoch. A list but the last of an epoch should fill whole batches.
        encode: makes sequences of the examples of a buffer.
        batch_size: int.
        limit: int, the largest width.
        order: see `LengthBatches`; it is the order within a buffer.
        seed: ints.
        count: returns the number of batches of an epoch; None to find it by encoding all examples.
        described: returns more numbers and strings for `identity`.
        compiled: see `fitted_buckets`.
    """

    def __init__(
        self,
        read: Callable[[int, int], Iterator[Sequence[Any]]],
        encode: Callable[[Sequence[Any]], Encoded],
        batch_size: int,
        limit: int,
        order: str = "shuffle",
        seed: tuple[int, ...] = (0,),
        count: Callable[[], int] | None = None,
        described: Callable[[], dict[str, Any]] = dict,
        compiled: bool = True,
    ) -> None:
        super().__init__()
        self.read, self.encode, self.count = read, encode, count
        self.batch_size, self.limit, self.order, self.seed = batch_size, limit, order, seed
        self.described, self.compiled = described, compiled
        self._buckets: list[int] = []
        self._latest: tuple[tuple[int, int], Encoded] | None = None  # the buffer that was encoded last
        self._num_batches: int | None = None
        self._start = {"step": 0, "epoch": 0, "example": 0, "buffer": 0}
        self._places: dict[int, dict[str, int]] = {}  # where the buffers of `batches_from` begin, by their first steps

    @property
    def num_batches(self) -> int:
        """Number of batches of an epoch, which is counted when it is first asked for."""
        if self._num_batches is None:
            self._num_batches = self.count() if self.count else sum(len(part) for _, part in self._buffers(0))
        return self._num_batches

    def batches(self) -> Iterator[Tensors]:
        for _, part in self._buffers(self.epoch):
            yield from part.batches()
            del part  # before the next one is made

    def batches_from(self, step: int) -> Iterator[Tensors]:
        """See `Batches`. Without a place to begin at, all earlier examples are encoded again."""
        done, epoch, example, buffer = (self._start[name] for name in ("step", "epoch", "example", "buffer"))
        while True:
            for place, part in self._buffers(epoch, example, buffer):
                self._places[done] = {"step": done, "epoch": epoch, **place}
                if done + len(part) <= step:
                    done += len(part)
                    continue
                for batch in part.batches():
                    done += 1
                    if done > step:
                        yield batch
                del part  # before the next one is made
            epoch, example, buffer = epoch + 1, 0, 0

    def place(self, step: int) -> dict[str, int]:
        """Return the beginning of the buffer that holds a step: its first step, epoch, first example, and number."""
        begun = sorted(first for first in [*self._places] if first <= step)  # a copy: another thread may read on
        for first in begun[:-1]:
            del self._places[first]
        return self._places[begun[-1]] if begun else {}

    def begin_at(self, place: dict[str, int]) -> None:
        self._start = place or self._start

    def first(self) -> Encoded:
        """Return the sequences of the first buffer of the first epoch, whose lengths decide on the widths.

        Raises:
            ValueError: if there are no examples.
        """
        for some in self.read(0, 0):
            return self._encoded(some, 0, 0)
        raise ValueError("There are no examples: the stream is empty.")

    def identity(self) -> dict[str, Any]:
        """Return the identity of the first buffer, and what else is known of the examples; see `Batches`."""
        _, part = next(self._buffers(0))
        return {**part.identity(), **self.described()}

    def _buffers(self, epoch: int, example: int = 0, number: int = 0) -> Iterator[tuple[dict[str, int], LengthBatches]]:
        """Yield the buffers of an epoch from one of them on, each with its number and that of its first example."""
        if not self._buckets:  # later buffers may hold longer sequences
            lengths = self.first()[0]
            buckets = fitted_buckets(lengths, self.limit, batch_size=self.batch_size, compiled=self.compiled)
            self._buckets = buckets if buckets[-1] >= self.limit else [*buckets, self.limit]
        for some in self.read(epoch, example):
            yield {"example": example, "buffer": number}, self._batches_of(some, epoch, number)
            example, number = example + len(some), number + 1

    def _batches_of(self, some: Sequence[Any], epoch: int, number: int) -> LengthBatches:
        lengths, make_batch = self._encoded(some, epoch, number)
        # The first buffer has the seed that a list in memory has.
        seed = self.seed if number == 0 else (*self.seed, number)
        part = LengthBatches(lengths, make_batch, self.batch_size, self._buckets, self.order, seed)
        part.begin_epoch(epoch)
        return part

    def _encoded(self, some: Sequence[Any], epoch: int, number: int) -> Encoded:
        if self._latest is None or self._latest[0] != (epoch, number):
            self._latest = None  # frees it before the next one is made
            self._latest = ((epoch, number), self.encode(some))
        return self._latest[1]
