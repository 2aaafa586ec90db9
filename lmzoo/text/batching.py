"""Batches of rows of similar length, padded to few different widths."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np

_ENDLESS = -1  # `tf.data.INFINITE_CARDINALITY`
_SAMPLED = 1024  # rows by whose content data are told from others
_WINDOW = 50  # batches that are shuffled together and sorted by length within


def fitted_buckets(lengths: np.ndarray, limit: int, most: int = 7, multiple: int = 8) -> list[int]:
    """The padded widths, at most `most`, that cost the least padding for rows of these lengths.

    Every row is padded to the smallest width that holds it. The choice is exact over multiples of `multiple`, by
    dynamic programming.

    Args:
        lengths: int array (n,).
        limit: int, no width exceeds it, except for a row that does; the positions that a model has.
        most: int, how many widths at most.
        multiple: int, widths are multiples of it, but for one cut to the limit.

    Returns:
        Widths in rising order; the last holds the longest row.

    Raises:
        ValueError: if there are no rows.

    Example:

    ```python
    import numpy as np
    from lmzoo.text.batching import fitted_buckets

    fitted_buckets(np.array([5, 6, 7, 60, 61]), limit=62, most=2)  # [8, 62]
    ```
    """
    if not len(lengths):
        raise ValueError("There are no examples: got an empty list of texts.")
    units = np.maximum(1, -(-np.asarray(lengths) // multiple))
    counts = np.bincount(units)
    below = np.concatenate([[0], np.cumsum(counts)])  # below[u]: rows of fewer than u units
    top = len(counts) - 1
    # cost[u]: least padded size of all rows of at most u units when u is itself a width.
    cost = [np.array([u * below[u + 1] for u in range(top + 1)], "float64")]
    choice = []
    for _ in range(most - 1):
        step = np.array(
            [
                [cost[-1][v] + u * (below[u + 1] - below[v + 1]) if v < u else np.inf for v in range(top + 1)]
                for u in range(top + 1)
            ]
        )
        choice.append(step.argmin(axis=1))
        cost.append(step.min(axis=1))
    best = int(np.argmin([c[top] for c in cost]))
    widths = [top]
    for k in range(best - 1, -1, -1):
        widths.append(int(choice[k][widths[-1]]))
    limit = max(limit, int(np.max(lengths)))
    return [min(limit, u * multiple) for u in reversed(widths) if u > 0]


def ladder_buckets(limit: int, multiple: int = 8) -> list[int]:
    """Eight widths up to `limit`, the same for every call, so that repeated predictions share compiled code.

    Args:
        limit: int, longest row.
        multiple: int, widths but the last are multiples of it.
    """
    steps = (1 / 32, 1 / 16, 3 / 32, 1 / 8, 3 / 16, 1 / 4, 1 / 2)
    return sorted({min(limit, max(multiple, -(-round(limit * s) // multiple) * multiple)) for s in steps} | {limit})


class Batches(keras.utils.PyDataset):
    """Batches that can be gone through again and again; a pass belongs to the epoch begun last."""

    epoch = 0

    def begin_epoch(self, epoch: int, logs: Any = None) -> None:
        """Says what epoch the next pass belongs to; the signature of a Keras callback."""
        self.epoch = epoch

    def batches(self) -> Iterator[Any]:
        """One pass."""
        raise NotImplementedError

    def batches_from(self, step: int) -> Iterator[Any]:
        """The batches of all epochs, one after another without end, from some step of the first epoch's on."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """What must be the same for two of these to give the same batches, by name; numbers and strings."""
        raise NotImplementedError


class LengthBatches(Batches):
    """Batches of packed rows, each padded to the smallest bucket that holds its longest row.

    A pass begins with the batch at index 0 and belongs to the epoch begun last (`begin_epoch`).

    Args:
        lengths: int array (n,), length of every row.
        make_batch: `(rows, width, rng) -> batch`; `rows` int array (b,), `rng` a numpy generator that depends only on
            the seed, the epoch and the batch.
        batch_size: int.
        buckets: allowed widths, rising.
        order: `"shuffle"` (a new order each epoch; rows of similar length share a batch), `"sorted"` (by length) or
            `"given"`.
        seed: ints.
        round_up: whether to fill a last, smaller batch up to a power of two by repeating a row of it.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        make_batch: Callable[[np.ndarray, int, np.random.Generator], Any],
        batch_size: int,
        buckets: list[int],
        order: str = "shuffle",
        seed: tuple[int, ...] = (0,),
        round_up: bool = False,
    ) -> None:
        super().__init__()
        self.lengths = np.asarray(lengths)
        self.make_batch = make_batch
        self.batch_size = batch_size
        self.buckets = np.asarray(buckets)
        self.order = order
        self.seed = seed
        self.round_up = round_up
        self._pass = (0, self._plan(0))

    def _plan(self, epoch: int) -> list[np.ndarray]:
        count, size = len(self.lengths), self.batch_size
        if self.order == "given":
            index = np.arange(count)
        elif self.order == "sorted":
            index = np.argsort(self.lengths, kind="stable")
        else:
            rng = np.random.default_rng((*self.seed, epoch))
            index = rng.permutation(count)
            window = _WINDOW * size
            pieces = [index[i : i + window] for i in range(0, count, window)]
            index = np.concatenate([p[np.argsort(self.lengths[p], kind="stable")] for p in pieces])
        batches = [index[i : i + size] for i in range(0, count, size)]
        if self.order == "shuffle":
            batches = [batches[i] for i in rng.permutation(len(batches))]
        if self.round_up:
            last = batches[-1]
            target = min(size, 1 << (len(last) - 1).bit_length())
            batches[-1] = np.concatenate([last, np.repeat(last[:1], target - len(last))])
        return batches

    def _batch(self, rows: np.ndarray, epoch: int, index: int) -> Any:
        longest = self.lengths[rows].max()
        if len(rows) < self.batch_size and not self.round_up:
            longest = self.lengths.max()  # one shape for the partial batches of all epochs
        return self.make_batch(rows, self._width(longest), np.random.default_rng((*self.seed, epoch, index)))

    def _width(self, longest: int) -> int:
        return int(self.buckets[np.searchsorted(self.buckets, longest)])

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return len(self)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.lengths) // self.batch_size)

    def __getitem__(self, index: int) -> Any:
        """The batch at `index` of the current pass."""
        if index == 0 and self._pass[0] != self.epoch:
            self._pass = (self.epoch, self._plan(self.epoch))
        epoch, plan = self._pass
        return self._batch(plan[index], epoch, index)

    def batches(self) -> Iterator[Any]:
        """One pass, in the order of the epoch begun last."""
        epoch = self.epoch
        for index, rows in enumerate(self._plan(epoch)):
            yield self._batch(rows, epoch, index)

    def batches_from(self, step: int) -> Iterator[Any]:
        """The batches of all epochs, one after another without end, from some step of the first epoch's on."""
        epoch, first = divmod(step, len(self))
        while True:
            for index, rows in enumerate(self._plan(epoch)[first:], first):
                yield self._batch(rows, epoch, index)
            epoch, first = epoch + 1, 0

    def identity(self) -> dict[str, Any]:
        """The texts, by their lengths and by what a sample of them is made into, and how they are put into batches."""
        lengths = hashlib.sha256(np.asarray(self.lengths, "<i8").tobytes()).hexdigest()
        batching = {"batch size": self.batch_size, "order": self.order, "seed": self.seed[0]}
        return {"texts": lengths, "content of the batches": self._sample(), **batching}

    def _sample(self) -> str:
        """Digest of ids, labels and weights of rows that are spread evenly, without regard to seed and order."""
        digest, count = hashlib.sha256(), len(self.lengths)
        rows = np.unique(np.linspace(0, count - 1, min(count, _SAMPLED)).astype("int64"))
        for some in np.array_split(rows, max(1, len(rows) // 32)):
            batch = self.make_batch(some, self._width(self.lengths[some].max()), np.random.default_rng(0))
            for array in map(np.asarray, keras.tree.flatten(batch)):
                digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
        return digest.hexdigest()

    @property
    def example_order(self) -> np.ndarray:
        """Int array: the row behind each output of a pass over the current epoch."""
        return np.concatenate(self._plan(self.epoch))


def keras_input(x: Any, start: int | None = None) -> Any:
    """`x`, `Batches`, in the form that Keras' trainers take most cheaply on the current backend.

    On TensorFlow that is a `tf.data.Dataset` of open shapes (Keras would fix them from the first two batches);
    elsewhere the `PyDataset` itself. Anything else is returned as it is.

    Args:
        x: what Keras is to be given.
        start: int, for `Batches` the step at which to begin; the epochs follow one another without end then.
    """
    if not isinstance(x, Batches):
        return x
    if keras.backend.backend() == "tensorflow":
        if start is not None:
            return stream(partial(x.batches_from, start), _ENDLESS, x.batches)
        count = x.num_batches
        return stream(x.batches, _ENDLESS if count is None else count)
    return x if start is None else x.batches_from(start)


def stream(
    passes: Callable[[], Iterator[Any]], cardinality: int, like: Callable[[], Iterator[Any]] | None = None
) -> Any:
    """A `tf.data.Dataset` of open shapes over what each call of `passes` yields.

    Args:
        passes: begins a pass: an iterator over batches, equal in structure and dtypes.
        cardinality: batches of a pass, or one of `tf.data`'s negative constants.
        like: begins a pass of such batches that has its first one sooner.
    """
    import tensorflow as tf

    first = next((like or passes)())
    signature = keras.tree.map_structure(lambda a: tf.TensorSpec([None] * a.ndim, a.dtype), first)
    # TensorFlow never lets go of a generator's function. What it holds, the examples and the model, goes with the
    # dataset, which alone refers to it.
    held = _Held(passes)
    reference = weakref.ref(held)
    dataset = tf.data.Dataset.from_generator(lambda: reference().passes(), output_signature=signature)
    if cardinality != tf.data.UNKNOWN_CARDINALITY:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    # There is nothing to tune, and the thread that would tune it keeps the end of a pass waiting for seconds.
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = dataset.prefetch(2).with_options(options)
    dataset.held = held
    return dataset


class _Held:
    """Something that a weak reference can refer to."""

    def __init__(self, passes: Callable[[], Iterator[Any]]) -> None:
        self.passes = passes
