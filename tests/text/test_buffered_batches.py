"""Batches of one buffer after another: every example once per epoch, and any step restored."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lmzoo.text import LengthBatches
from lmzoo.text.batching import fit_buckets
from lmzoo.text.buffered_batches import BufferedBatches

LENGTHS = np.random.default_rng(4).integers(1, 40, 107)
LIMIT = 45


def buffered(size=24, batch_size=6, copies=1, order="shuffle", encodings=None):
    """Return batches of examples' numbers and a width; an example may be several sequences."""

    def read_buffers(epoch, first):
        for start in range(first, len(LENGTHS), size):
            yield range(start, min(start + size, len(LENGTHS)))

    def encode(examples):
        if encodings is not None:
            encodings.append(examples[0])
        numbers = np.concatenate([[i] * (1 + i % copies) for i in examples])
        return LENGTHS[numbers], lambda indices, width, rng: (numbers[indices].tolist(), width, rng.random())

    count = (lambda: -(-len(LENGTHS) // batch_size)) if copies == 1 else None
    return BufferedBatches(read_buffers, encode, batch_size, LIMIT, order, (7,), count, lambda: {"buffer": size})


def numbers_of(batches):
    return [number for batch, _, _ in batches for number in batch]


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("order", ["shuffle", "sorted", "given"])
def test_every_example_is_read_once(order, copies):
    stream, epochs = buffered(copies=copies, order=order), []
    for epoch in (0, 1):
        stream.begin_epoch(epoch)
        batches = list(stream.batches())
        assert sorted(numbers_of(batches)) == [i for i in range(107) for _ in range(1 + i % copies)]
        assert all(LENGTHS[batch].max() <= width for batch, width, _ in batches)
        assert len(batches) == stream.num_batches
        assert [stream[i] for i in range(len(batches))] == batches
        epochs.append(batches)
    assert (numbers_of(epochs[0]) == numbers_of(epochs[1])) == (order != "shuffle")
    if copies == 1 and order == "given":
        assert numbers_of(epochs[0]) == [*range(107)]


@pytest.mark.parametrize("order", ["shuffle", "sorted", "given"])
def test_one_buffer_equals_texts_in_memory(order):
    def make_batch(indices, width, rng):
        return indices.tolist(), width, rng.random()

    buckets = fit_buckets(LENGTHS, LIMIT, batch_size=6)  # as for texts in memory
    in_memory = LengthBatches(LENGTHS, make_batch, 6, buckets, order, (7,))
    stream = buffered(size=500, order=order)
    assert list(itertools.islice(stream.batches_from(0), 50)) == list(itertools.islice(in_memory.batches_from(0), 50))
    identity = stream.identity()
    assert identity.pop("buffer") == 500
    assert identity.keys() == in_memory.identity().keys()


@pytest.mark.parametrize("copies", [1, 3])
def test_any_step_is_restored(copies):
    expected = list(itertools.islice(buffered(copies=copies).batches_from(0), 90))  # several epochs
    for step in range(0, 85, 7):
        first, resumed = buffered(copies=copies), buffered(copies=copies)
        list(itertools.islice(first.batches_from(0), step + 3))  # a few batches are made ahead of training
        resumed.begin_at(first.place(step))
        assert list(itertools.islice(resumed.batches_from(step), 90 - step)) == expected[step:]
    # A stream without a place is also resumed, and its own place is right.
    without_place = buffered(copies=copies)
    assert list(itertools.islice(without_place.batches_from(50), 40)) == expected[50:]
    with_place = buffered(copies=copies)
    with_place.begin_at(without_place.place(80))
    assert list(itertools.islice(with_place.batches_from(80), 10)) == expected[80:]


def test_buffers_before_a_place_are_not_encoded():
    first, encodings = buffered(), []
    list(itertools.islice(first.batches_from(0), 17))
    resumed = buffered(encodings=encodings)
    resumed.begin_at(first.place(14))
    next(resumed.batches_from(14))
    assert encodings == [0, 72]  # the first buffer decides the widths


def buffered_lengths(*buffers, order="shuffle"):
    """Return batches of buffers of examples, which are the lengths of their sequences, or 0 if they have none."""

    def read_buffers(epoch, first):
        begins = [0, *itertools.accumulate(map(len, buffers))]
        return (buffer for begin, buffer in zip(begins, buffers, strict=False) if begin >= first)

    def encode(examples):
        lengths = np.array([length for length in examples if length], "int32")
        return lengths, lambda indices, width, rng: sorted(lengths[indices].tolist())

    return BufferedBatches(read_buffers, encode, 2, LIMIT, order)


@pytest.mark.parametrize("order", ["shuffle", "sorted"])
def test_buffers_without_sequences_are_skipped(order):
    stream = buffered_lengths([0, 0], [3, 5], [0], [7], order=order)
    assert list(stream.batches()) == [[3, 5], [7]]
    assert stream.num_batches == 2
    assert list(itertools.islice(stream.batches_from(0), 5)) == [[3, 5], [7], [3, 5], [7], [3, 5]]
    resumed = buffered_lengths([0, 0], [3, 5], [0], [7], order=order)
    resumed.begin_at({"step": 3, "epoch": 1, "example": 5, "buffer": 3})
    assert list(itertools.islice(resumed.batches_from(3), 2)) == [[7], [3, 5]]


def test_an_epoch_without_sequences_is_an_error():
    empty = buffered_lengths([0, 0], [0])
    for read in (empty.first, empty.identity, lambda: next(empty.batches()), lambda: next(empty.batches_from(0))):
        with pytest.raises(ValueError, match=r"There are no examples: .* its texts are too short\. Pass"):
            read()
    later = buffered_lengths([3])
    later.read = lambda epoch, first: iter([[0] if epoch else [3]])
    batches = later.batches_from(0)
    assert next(batches) == [3]
    with pytest.raises(ValueError, match="There are no examples"):
        next(batches)


def test_an_empty_stream_is_an_error():
    empty = BufferedBatches(lambda epoch, first: iter(()), lambda examples: None, 6, LIMIT)
    with pytest.raises(ValueError, match="There are no examples: the stream is empty"):
        next(empty.batches())
