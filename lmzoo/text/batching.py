"""Batches of sequences of similar length, padded to a few different widths."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from lmzoo.common.tensor_types import Tensors

_MULTIPLE = 8  # of which padded widths are multiples, except for the largest
_WIDTHS = {False: 7, True: 4}  # by whether each is compiled; 4 widths need about an eighth more padding than 7
_OPEN_WIDTHS, _OPEN_MULTIPLE = 32, 4  # the same where one graph computes all widths
_BATCHES_TO_COMPILE = 3  # compiling takes 10 to 20 steps' time on a CPU, and `fit` passes over the data a few times
_SAMPLED = 1024  # examples whose content identifies a data set
_WINDOW = 50  # batches whose examples are sorted by length together, after shuffling


def compiles_shapes() -> bool:
    """Whether each shape of a batch is compiled for an accelerator, which takes longer than some padding costs."""
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() != "cpu"


def fitted_buckets(
    lengths: np.ndarray,
    limit: int,
    most: int | None = None,
    multiple: int | None = None,
    batch_size: int = 0,
    compiled: bool = True,
) -> list[int]:
    """At most `most` padded widths that need the least padding for sequences of these lengths.

    Every sequence is padded to the smallest width that holds it. Dynamic programming finds the best multiples of
    `multiple`.

    Args:
        lengths: int array (n,).
        limit: int, the largest width, such as the number of positions of a model; a longer sequence raises it.
        most: int, maximum number of widths; by default 7, or 4 where each shape is compiled for an accelerator, or 32
            if one graph computes all widths.
        multiple: int, widths are multiples of it, except for one that is cut to the limit; by default 8, or 4 if one
            graph computes all widths on a CPU.
        batch_size: int; a further width that is compiled must save the padding of a few such batches, since compiling
            it takes longer than a little padding.
        compiled: whether XLA compiles the model. TensorFlow without XLA computes all widths by one graph.

    Returns:
        Widths in rising order; the last one holds the longest sequence.

    Raises:
        ValueError: if there are no sequences.

    Example:

    ```python
    import numpy as np
    from lmzoo.text.batching import fitted_buckets

    fitted_buckets(np.array([5, 6, 7, 60, 61]), limit=62, most=2)  # [8, 62]
    ```
    """
    if not len(lengths):
        raise ValueError("There are no examples: got an empty list of texts.")
    one_graph = keras.backend.backend() == "tensorflow" and not compiled
    if multiple is None:
        multiple = _OPEN_MULTIPLE if one_graph and not keras.distribution.list_devices("gpu") else _MULTIPLE
    if most is None:
        most = _OPEN_WIDTHS if one_graph else _WIDTHS[compiles_shapes()]
    saving = _BATCHES_TO_COMPILE * batch_size * float(np.mean(lengths)) if compiled else 0
    units = np.maximum(1, -(-np.asarray(lengths) // multiple))
    counts = np.bincount(units)
    up_to = np.cumsum(counts)  # (U,), sequences of at most u units
    top = len(counts) - 1
    width = np.arange(len(counts))[:, None]  # (U, 1)
    # added[u, v]: padded size of the sequences of v + 1 to u units at width u.
    added = np.where(width > width.T, width * (up_to[:, None] - up_to), np.inf)  # (U, U)
    # cost[u]: least padded size of all sequences of at most u units if u itself is a width.
    cost = [np.arange(len(counts)) * up_to.astype("float64")]
    choice = []
    for _ in range(most - 1):
        step = cost[-1] + added  # (U, U)
        choice.append(step.argmin(axis=1))
        cost.append(step.min(axis=1))
    best = int(np.argmin([c[top] + k * saving / multiple for k, c in enumerate(cost)]))
    widths = [top]
    for k in range(best - 1, -1, -1):
        widths.append(int(choice[k][widths[-1]]))
    limit = max(limit, int(np.max(lengths)))
    return [min(limit, u * multiple) for u in reversed(widths) if u > 0]


def ladder_buckets(limit: int) -> list[int]:
    """Return eight widths up to `limit`, the same for every call, so that repeated predictions share compiled code."""
    steps = (1 / 32, 1 / 16, 3 / 32, 1 / 8, 3 / 16, 1 / 4, 1 / 2)
    return sorted({min(limit, max(_MULTIPLE, -(-round(limit * s) // _MULTIPLE) * _MULTIPLE)) for s in steps} | {limit})


def stream_steps(count: int, rows: int) -> int:
    """How many of `count` sequences follow one another in each of `rows` streams; the last streams may hold fewer."""
    return -(-count // rows)


class Batches(keras.utils.PyDataset):
    """Batches over which one can iterate repeatedly; each pass belongs to the epoch that was begun last."""

    epoch = 0
    fixed_shapes = False  # whether batches differ only in their number of sequences

    def begin_epoch(self, epoch: int, logs: object = None) -> None:
        """Set the epoch of the next pass; the signature is that of a Keras callback."""
        self.epoch = epoch

    def batches(self) -> Iterator[Tensors]:
        """Iterate over the batches of one pass."""
        raise NotImplementedError

    def batches_from(self, step: int) -> Iterator[Tensors]:
        """Iterate over the batches of all epochs without end, beginning at a step counted from the first epoch."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Return numbers and strings by name; if they are equal for two instances, so are their batches."""
        raise NotImplementedError

    def place(self, step: int) -> dict[str, int]:
        """Return what `begin_at` needs to find a step again that `batches_from` has passed; nothing if that is easy."""
        return {}

    def begin_at(self, place: dict[str, int]) -> None:
        """Take what `place` returned, perhaps in another process, before `batches_from` is called for that step."""


class OrderedBatches(Batches):
    """Batches that can only be read one after another."""

    _pass: tuple[int, Iterator[Tensors]] = (0, iter(()))

    def __getitem__(self, index: int) -> Tensors:
        """Return the batch at `index`, which must be the next one, or 0 to begin a pass."""
        if index == 0:
            self._pass = (0, self.batches())
        if index != self._pass[0]:
            raise IndexError(f"Batches are read in order: batch {self._pass[0]} comes next, not {index}.")
        self._pass = (index + 1, self._pass[1])
        return next(self._pass[1])


class LengthBatches(Batches):
    """Batches of packed sequences, each padded to the smallest bucket that holds its longest sequence.

    A pass begins with the batch at index 0 and belongs to the epoch that was begun last (`begin_epoch`).

    Args:
        lengths: int array (n,), length of every sequence.
        make_batch: `(indices, width, rng) -> batch`; `indices` is an int array (b,), `rng` a numpy generator that
            depends only on the seed, the epoch and the batch.
        batch_size: int.
        buckets: allowed widths, rising.
        order: `"shuffle"` (a new order each epoch; sequences of similar length share a batch), `"sorted"` (by length),
            `"given"`, or `"streams"` (row k of a batch continues in row k of the next batch, see `stream_steps`).
        seed: ints.
        round_up: whether to fill a smaller last batch up to a power of two by repeating its first sequence.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        make_batch: Callable[[np.ndarray, int, np.random.Generator], Tensors],
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
        if self.order == "streams":
            steps = stream_steps(count, size)
            return [np.arange(i, count, steps) for i in range(steps)]
        if self.order == "given":
            index = np.arange(count)
        elif self.order == "sorted":
            index = np.argsort(self.lengths, kind="stable")
        else:
            rng = np.random.default_rng((*self.seed, epoch))
            index = rng.permutation(count)
            window = _WINDOW * size
            windows = [index[i : i + window] for i in range(0, count, window)]
            index = np.concatenate([w[np.argsort(self.lengths[w], kind="stable")] for w in windows])
        batches = [index[i : i + size] for i in range(0, count, size)]
        if self.order == "shuffle":
            batches = [batches[i] for i in rng.permutation(len(batches))]
        if self.round_up:
            last = batches[-1]
            target = min(size, 1 << (len(last) - 1).bit_length())
            batches[-1] = np.concatenate([last, np.repeat(last[:1], target - len(last))])
        return batches

    def _batch(self, indices: np.ndarray, epoch: int, number: int) -> Tensors:
        return self.make_batch(indices, self._width_of(indices), np.random.default_rng((*self.seed, epoch, number)))

    def _width_of(self, indices: np.ndarray) -> int:
        one_shape = len(indices) < self.batch_size and not self.round_up  # for the partial batches of all epochs
        return self._width(self.lengths.max() if one_shape else self.lengths[indices].max())

    def _width(self, longest: int) -> int:
        return int(self.buckets[np.searchsorted(self.buckets, longest)])

    def __len__(self) -> int:
        """Return number of batches of an epoch."""
        return stream_steps(len(self.lengths), self.batch_size)

    def __getitem__(self, index: int) -> Tensors:
        """Return the batch at `index` of the current pass."""
        if index == 0 and self._pass[0] != self.epoch:
            self._pass = (self.epoch, self._plan(self.epoch))
        epoch, plan = self._pass
        return self._batch(plan[index], epoch, index)

    def batches(self) -> Iterator[Tensors]:
        return itertools.islice(self.batches_from(self.epoch * len(self)), len(self))

    def joined_batches(self) -> Iterator[Tensors]:
        """Yield the batches of a pass, successive ones of the same width as one, for `make_batch` that needs no `rng`.

        The order must be "sorted" or "given", in which only the last batch is smaller.
        """
        for width, run in itertools.groupby(self._plan(self.epoch), self._width_of):
            yield self.make_batch(np.concatenate([*run]), width, np.random.default_rng(0))

    def batches_from(self, step: int) -> Iterator[Tensors]:
        epoch, first = divmod(step, len(self))
        while True:
            for number, indices in enumerate(self._plan(epoch)[first:], first):
                yield self._batch(indices, epoch, number)
            epoch, first = epoch + 1, 0

    def identity(self) -> dict[str, Any]:
        """Return the lengths of all texts, the content of a sample of batches, and how batches are made."""
        lengths = hashlib.sha256(np.asarray(self.lengths, "<i8").tobytes()).hexdigest()
        return {
            "texts": lengths,
            "content of the batches": self._sample(),
            "number of texts": len(self.lengths),
            "batch size": self.batch_size,
            "order": self.order,
            "seed": self.seed[0],
        }

    def _sample(self) -> str:
        """Return the digest of ids, labels and weights of evenly spaced examples, independent of seed and order."""
        digest, count = hashlib.sha256(), len(self.lengths)
        indices = np.unique(np.linspace(0, count - 1, min(count, _SAMPLED)).astype("int64"))
        for some in np.array_split(indices, max(1, len(indices) // 32)):
            _add_to(digest, self.make_batch(some, self._width(self.lengths[some].max()), np.random.default_rng(0)))
        return digest.hexdigest()

    @property
    def example_order(self) -> np.ndarray:
        """Int array: the index of the example of each output in a pass over the current epoch."""
        return np.concatenate(self._plan(self.epoch))


class ArrayBatches(LengthBatches):
    """Batches of arrays that have a row for each sequence, such as token features.

    Args:
        arrays: `(x, y, sample_weight)`, each a dict of arrays, an array or None. Weights (n,) or (n, 1) count for each
            of several `y`.
        batch_size: int.
        order: `"shuffle"`, or anything else for the given one.
        seed: ints.

    Raises:
        ValueError: if there are no rows, or not equally many; for weights of other outputs than `y` has.
    """

    fixed_shapes = True

    def __init__(
        self, arrays: tuple[Any, Any, Any], batch_size: int, order: str = "given", seed: tuple[int, ...] = (0,)
    ) -> None:
        x, y, weights = (None if part is None else _as_arrays(part) for part in arrays)
        if isinstance(y, dict) and isinstance(weights, np.ndarray) and weights.size == len(weights):
            weights = dict.fromkeys(y, weights)
        if weights is not None and y is not None and _outputs(weights) != _outputs(y):
            raise ValueError(f"`sample_weight` must be {_outputs(y)}, as `y` is, got {_outputs(weights)}.")
        self.arrays = (x,) if y is None else (x, y) if weights is None else (x, y, weights)
        counts = {len(array) if array.ndim else None for array in keras.tree.flatten(self.arrays)}
        if len(counts) != 1:
            shapes = keras.tree.map_structure(np.shape, self.arrays)
            raise ValueError(f"Token features, labels and weights must have a row for each sequence, got {shapes}.")
        if not (count := counts.pop()):
            raise ValueError("There are no examples: the token features have no rows.")
        super().__init__(np.ones(count, "int32"), lambda indices, *_: self.rows(indices), batch_size, [1], order, seed)

    def rows(self, indices: Any) -> Any:
        """Return rows of all arrays."""
        return keras.tree.map_structure(lambda array: array[indices], self.arrays)

    def _sample(self) -> str:
        digest = hashlib.sha256()
        _add_to(digest, self.arrays)
        return digest.hexdigest()


def _add_to(digest: hashlib._Hash, arrays: Tensors) -> None:
    for array in map(np.asarray, keras.tree.flatten(arrays)):
        digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())


def _as_arrays(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: np.asarray(array) for name, array in values.items()}
    return np.asarray(values)


def _outputs(values: Any) -> str:
    return f"a dict of {sorted(values)}" if isinstance(values, dict) else "an array"
