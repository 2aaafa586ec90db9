"""Batches of examples that do not fit into memory, shuffled and sorted by length within buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lmzoo.common.tensor_types import Tensors
from lmzoo.text.batching import LengthBatches, OrderedBatches, fit_buckets

_NO_SEQUENCES = "There are no examples: the stream is empty, or its texts are too short. Pass longer texts."

# Two arguments of `LengthBatches`: the lengths of the sequences of a buffer, and `make_batch`.
Encoded = tuple[np.ndarray, Callable[[np.ndarray, int, np.random.Generator], Tensors]]


class BufferedBatches(OrderedBatches):
    """Batches as in `LengthBatches`, made from one buffer of examples after another.

    If one buffer holds all examples, the batches are the same as in `LengthBatches`. Buffers without sequences, such as
    those of empty documents, are skipped.

    Args:
        read: callable `(epoch, first) -> buffers` that returns an iterator over lists of examples, starting with the
            example at index `first` of an epoch. Each list except the last of an epoch should fill whole batches.
        encode: callable that encodes the examples of a buffer, and returns the arguments `lengths` and `make_batch` of
            `LengthBatches`.
        batch_size: int, number of sequences per batch.
        limit: int, largest padded width.
        order: str, order within a buffer: `"shuffle"`, `"sorted"`, `"given"` or `"streams"`, see `LengthBatches`.
        seed: tuple of ints, seed of the order.
        count: callable that returns the number of batches of an epoch; None to count them by encoding all examples.
        described: callable that returns a dict of further numbers and strings to include in `identity`.
        compiled: bool, whether XLA compiles the model, see `fit_buckets`.

    Raises:
        ValueError: If an epoch has no sequences; raised while reading.
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
        self.read = read
        self.encode = encode
        self.count = count
        self.batch_size = batch_size
        self.limit = limit
        self.order = order
        self.seed = seed
        self.described = described
        self.compiled = compiled
        self._buckets: list[int] = []
        self._latest: tuple[tuple[int, int], Encoded] | None = None  # the last encoded buffer, by epoch and index
        self._num_batches: int | None = None
        self._resume_at = {"step": 0, "epoch": 0, "example": 0, "buffer": 0}
        self._places: dict[int, dict[str, int]] = {}  # start of each buffer of `batches_from`, by its first step

    @property
    def num_batches(self) -> int:
        """Number of batches of an epoch, counted on first access."""
        if self._num_batches is None:
            self._num_batches = (
                self.count() if self.count else sum(len(buffer_batches) for _, buffer_batches in self._buffers(0))
            )
        return self._num_batches

    def batches(self) -> Iterator[Tensors]:
        for _, buffer_batches in self._buffers(self.epoch):
            yield from buffer_batches.batches()
            del buffer_batches  # free its memory before the next buffer is encoded

    def batches_from(self, step: int) -> Iterator[Tensors]:
        """Iterate endlessly over the batches of all epochs, beginning at `step`, counted from the first epoch.

        If `begin_at` has not restored a place, all earlier examples are encoded again.
        """
        steps_done = self._resume_at["step"]
        epoch = self._resume_at["epoch"]
        example_index = self._resume_at["example"]
        buffer_index = self._resume_at["buffer"]
        while True:
            for place, buffer_batches in self._buffers(epoch, example_index, buffer_index):
                self._places[steps_done] = {"step": steps_done, "epoch": epoch, **place}
                if steps_done + len(buffer_batches) <= step:
                    steps_done += len(buffer_batches)
                    continue
                for batch in buffer_batches.batches():
                    steps_done += 1
                    if steps_done > step:
                        yield batch
                del buffer_batches  # free its memory before the next buffer is encoded
            epoch += 1
            example_index = 0
            buffer_index = 0

    def place(self, step: int) -> dict[str, int]:
        """Return the place of the buffer that holds `step`: its first step, epoch, first example and index.

        The places of earlier buffers are forgotten. The dict is empty if no buffer up to `step` has been read.
        """
        # A copy of the keys, since another thread may add places.
        first_steps = sorted(first_step for first_step in [*self._places] if first_step <= step)
        for first_step in first_steps[:-1]:
            del self._places[first_step]
        return self._places[first_steps[-1]] if first_steps else {}

    def begin_at(self, place: dict[str, int]) -> None:
        self._resume_at = place or self._resume_at

    def first(self) -> Encoded:
        """Return the first encoded buffer with sequences, whose lengths determine the padded widths.

        Raises:
            ValueError: If there are no sequences.
        """
        for buffer_index, examples in enumerate(self.read(0, 0)):
            encoded = self._encode_buffer(examples, 0, buffer_index)
            if len(encoded[0]):
                return encoded
        raise ValueError(_NO_SEQUENCES)

    def identity(self) -> dict[str, Any]:
        """Return the identity of the first buffer's batches, and the values of `described`."""
        _, buffer_batches = next(self._buffers(0))
        return {**buffer_batches.identity(), **self.described()}

    def _buffers(
        self, epoch: int, example_index: int = 0, buffer_index: int = 0
    ) -> Iterator[tuple[dict[str, int], LengthBatches]]:
        """Yield the place and the batches of each buffer with sequences, beginning with the buffer at `buffer_index`.

        Args:
            epoch: int, the epoch.
            example_index: int, index of the first example of this buffer.
            buffer_index: int, index of this buffer in the epoch.

        Raises:
            ValueError: If the epoch has no sequences.
        """
        if not self._buckets:  # later buffers may hold longer sequences
            lengths = self.first()[0]
            buckets = fit_buckets(lengths, self.limit, batch_size=self.batch_size, compiled=self.compiled)
            self._buckets = buckets if buckets[-1] >= self.limit else [*buckets, self.limit]
        has_sequences = example_index > 0  # an epoch is resumed at a buffer with sequences
        for examples in self.read(epoch, example_index):
            if len(self._encode_buffer(examples, epoch, buffer_index)[0]):
                has_sequences = True
                yield (
                    {"example": example_index, "buffer": buffer_index},
                    self._make_buffer_batches(examples, epoch, buffer_index),
                )
            example_index += len(examples)
            buffer_index += 1
        if not has_sequences:
            raise ValueError(_NO_SEQUENCES)

    def _make_buffer_batches(self, examples: Sequence[Any], epoch: int, buffer_index: int) -> LengthBatches:
        """Return the batches of one buffer of examples."""
        lengths, make_batch = self._encode_buffer(examples, epoch, buffer_index)
        # The first buffer has the same seed as a list in memory, so that both give the same batches.
        seed = self.seed if buffer_index == 0 else (*self.seed, buffer_index)
        buffer_batches = LengthBatches(lengths, make_batch, self.batch_size, self._buckets, self.order, seed)
        buffer_batches.begin_epoch(epoch)
        return buffer_batches

    def _encode_buffer(self, examples: Sequence[Any], epoch: int, buffer_index: int) -> Encoded:
        """Return the encoded buffer, reusing the last encoded buffer if it is the same."""
        if self._latest is None or self._latest[0] != (epoch, buffer_index):
            self._latest = None  # free its memory before the next buffer is made
            self._latest = ((epoch, buffer_index), self.encode(examples))
        return self._latest[1]
