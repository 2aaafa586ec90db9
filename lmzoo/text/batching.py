"""Batches of sequences of similar length, padded to a small number of widths."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from lmzoo.common.tensor_types import Tensors

_WIDTH_MULTIPLE = 8  # padded widths are multiples of this number, except for the largest
_MAX_WIDTHS = 7
_MAX_COMPILED_WIDTHS = 4  # 4 widths need about an eighth more padding than 7
# Settings if one graph computes all widths:
_MAX_ONE_GRAPH_WIDTHS = 32
_ONE_GRAPH_WIDTH_MULTIPLE = 4
# A compiled width must save as much padding as this number of average batches has tokens: compiling takes as long as 10
# to 20 steps on a CPU, and `fit` reads the data a few times.
_BATCHES_TO_COMPILE = 3
_SAMPLE_SIZE = 1024  # number of examples whose content identifies a dataset
_SORTED_BATCHES = 50  # number of batches whose examples are sorted by length together, after shuffling


def prefers_few_shapes() -> bool:
    """Return whether batches should have few shapes, at the cost of more padding.

    True for JAX on an accelerator, where compiling another shape takes longer than computing the padding it saves.
    """
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() != "cpu"


def fit_buckets(
    lengths: np.ndarray,
    limit: int,
    most: int | None = None,
    multiple: int | None = None,
    batch_size: int = 0,
    compiled: bool = True,
) -> list[int]:
    """Return up to `most` padded widths that minimize the padding of sequences with the given lengths.

    Every sequence is padded to the smallest width that holds it. Dynamic programming finds the best multiples of
    `multiple`. Lengths of at least twice `limit` are texts in windows of `limit` tokens; they get up to `most` further
    widths, which are numbers of whole windows.

    Args:
        lengths: int array (n,), number of tokens of each sequence.
        limit: int, the largest width, such as a model's number of positions; a longer sequence, of less than twice this
            length, raises it.
        most: int, maximum number of widths; by default 4 for JAX on an accelerator, 32 for TensorFlow without XLA, and
            7 otherwise.
        multiple: int, divisor of all widths, except for the largest width if it is cut to `limit`; by default 4 for
            TensorFlow without XLA on a CPU, and 8 otherwise.
        batch_size: int, number of sequences per batch. If XLA compiles the model, each further width must save as much
            padding as a few batches have tokens, since compiling a width takes time.
        compiled: bool, whether XLA compiles the model. TensorFlow without XLA computes all widths with one graph.

    Returns:
        Widths in ascending order; the last width holds the longest sequence.

    Raises:
        ValueError: If `lengths` is empty.

    Example:

    ```python
    import numpy as np
    from lmzoo.text.batching import fit_buckets

    fit_buckets(np.array([5, 6, 7, 60, 61]), limit=62, most=2)  # [8, 62]
    ```
    """
    if not len(lengths):
        raise ValueError("There are no examples: got an empty list of texts.")
    lengths = np.asarray(lengths)
    # The width of a text in several windows is a number of whole windows.
    in_windows = lengths >= 2 * limit
    if in_windows.any():
        num_windows = lengths[in_windows] // limit
        window_buckets = fit_buckets(num_windows, int(num_windows.max()), most, 1, batch_size, compiled)
        short_lengths = lengths[~in_windows]
        short_buckets = (
            fit_buckets(short_lengths, limit, most, multiple, batch_size, compiled) if len(short_lengths) else []
        )
        return [*short_buckets, *(bucket * limit for bucket in window_buckets)]
    has_one_graph = keras.backend.backend() == "tensorflow" and not compiled
    if multiple is None:
        has_one_graph_on_cpu = has_one_graph and not keras.distribution.list_devices("gpu")
        multiple = _ONE_GRAPH_WIDTH_MULTIPLE if has_one_graph_on_cpu else _WIDTH_MULTIPLE
    if most is None and has_one_graph:
        most = _MAX_ONE_GRAPH_WIDTHS
    elif most is None:
        most = _MAX_COMPILED_WIDTHS if prefers_few_shapes() else _MAX_WIDTHS
    required_saving = _BATCHES_TO_COMPILE * batch_size * float(np.mean(lengths)) if compiled else 0
    lengths_in_units = np.maximum(1, -(-np.asarray(lengths) // multiple))
    sequence_counts = np.bincount(lengths_in_units)  # (U,), sequences of u units
    cumulative_counts = np.cumsum(sequence_counts)  # (U,), sequences of at most u units
    max_units = len(sequence_counts) - 1
    candidate_widths = np.arange(len(sequence_counts))[:, None]  # (U, 1), in units
    # added_costs[u, v]: padded size of the sequences of v + 1 to u units at width u.
    added_costs = np.where(
        candidate_widths > candidate_widths.T,
        candidate_widths * (cumulative_counts[:, None] - cumulative_counts),
        np.inf,
    )  # (U, U)
    # costs[-1][u]: least padded size of all sequences of at most u units if u itself is a width.
    costs = [np.arange(len(sequence_counts)) * cumulative_counts.astype("float64")]
    previous_widths = []
    for _ in range(most - 1):
        candidate_costs = costs[-1] + added_costs  # (U, U)
        previous_widths.append(candidate_costs.argmin(axis=1))
        costs.append(candidate_costs.min(axis=1))
    num_smaller_widths = int(np.argmin([c[max_units] + k * required_saving / multiple for k, c in enumerate(costs)]))
    widths_in_units = [max_units]
    for k in range(num_smaller_widths - 1, -1, -1):
        widths_in_units.append(int(previous_widths[k][widths_in_units[-1]]))
    limit = max(limit, int(np.max(lengths)))
    return [min(limit, u * multiple) for u in reversed(widths_in_units) if u > 0]


def ladder_buckets(limit: int) -> list[int]:
    """Return up to eight padded widths that depend only on `limit`, so that calls of `predict` share compiled code."""
    fractions = (1 / 32, 1 / 16, 3 / 32, 1 / 8, 3 / 16, 1 / 4, 1 / 2)
    multiples = (max(1, -(-round(limit * fraction) // _WIDTH_MULTIPLE)) for fraction in fractions)
    return sorted({*(min(limit, multiple * _WIDTH_MULTIPLE) for multiple in multiples), limit})


def smallest_bucket(buckets: Sequence[int] | np.ndarray, longest: int) -> int:
    """Return the smallest bucket of at least `longest` tokens, or `longest` itself if all buckets are smaller.

    `buckets` are in ascending order. Only texts in several windows can exceed the buckets of other texts.
    """
    bucket_index = int(np.searchsorted(buckets, longest))
    return int(buckets[bucket_index]) if bucket_index < len(buckets) else int(longest)


def stream_steps(count: int, rows: int) -> int:
    """Return the number of sequences in each stream if `count` consecutive sequences are divided into `rows` streams.

    The last streams may hold fewer sequences.
    """
    return -(-count // rows)


class Batches(keras.utils.PyDataset):
    """Base class of batches that can be iterated over repeatedly.

    A pass over the batches belongs to the epoch set by the last call of `begin_epoch`.
    """

    epoch = 0
    fixed_shapes = False  # whether batches differ only in their number of sequences

    def begin_epoch(self, epoch: int, logs: object = None) -> None:
        """Set the epoch of the next pass; `logs`, which Keras passes to callbacks, is ignored."""
        self.epoch = epoch

    def batches(self) -> Iterator[Tensors]:
        """Iterate over the batches of one pass."""
        raise NotImplementedError

    def batches_from(self, step: int) -> Iterator[Tensors]:
        """Iterate endlessly over the batches of all epochs, beginning at `step`, counted from the first epoch."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Return a dict that identifies the batches: instances with equal dicts produce equal batches."""
        raise NotImplementedError

    def place(self, step: int) -> dict[str, int]:
        """Return the state that `begin_at` needs to resume at `step`, which `batches_from` has already reached.

        An empty dict means that resuming at a step is fast without any state.
        """
        return {}

    def begin_at(self, place: dict[str, int]) -> None:
        """Restore the state that `place` returned, possibly in another process.

        Call it before `batches_from` with the same step.
        """


class OrderedBatches(Batches):
    """Base class of batches that can only be read in order."""

    _pass: tuple[int, Iterator[Tensors]] = (0, iter(()))

    def __getitem__(self, index: int) -> Tensors:
        """Return the batch at `index`, which must be the next index, or 0 to begin a pass.

        Raises:
            IndexError: If `index` is neither.
        """
        if index == 0:
            self._pass = (0, self.batches())
        if index != self._pass[0]:
            raise IndexError(f"Batches are read in order: batch {self._pass[0]} comes next, not {index}.")
        self._pass = (index + 1, self._pass[1])
        return next(self._pass[1])


class LengthBatches(Batches):
    """Batches of packed sequences, each padded to the smallest bucket that holds its longest sequence.

    A pass begins with the batch at index 0 and belongs to the epoch of the last `begin_epoch`. Without `round_up`, a
    batch with fewer sequences is padded to hold the longest sequence of all batches.

    Args:
        lengths: int array (n,), number of tokens of each sequence.
        make_batch: callable `(indices, width, rng) -> batch` that pads the sequences at `indices`, int (b,), to
            `width`; `rng` is a numpy generator that depends only on the seed, the epoch and the index of the batch.
        batch_size: int, number of sequences per batch.
        buckets: list of ints, padded widths in ascending order.
        order: `"shuffle"` (a new order each epoch; sequences of similar length share a batch), `"sorted"` (by length),
            `"given"`, or `"streams"` (row k of a batch continues in row k of the next batch, see `stream_steps`).
        seed: tuple of ints, seed of the order and of `rng`.
        round_up: bool, whether to fill a smaller last batch by repeating its first sequence, up to the batch size or,
            if it is the only batch, to a power of two.
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
        """Return the indices of the sequences in each batch of an epoch."""
        num_sequences = len(self.lengths)
        batch_size = self.batch_size
        if self.order == "streams":
            num_batches = stream_steps(num_sequences, batch_size)
            return [np.arange(i, num_sequences, num_batches) for i in range(num_batches)]
        if self.order == "given":
            order = np.arange(num_sequences)
        elif self.order == "sorted":
            order = np.argsort(self.lengths, kind="stable")
        else:
            rng = np.random.default_rng((*self.seed, epoch))
            order = rng.permutation(num_sequences)
            group_size = _SORTED_BATCHES * batch_size
            groups = [order[i : i + group_size] for i in range(0, num_sequences, group_size)]
            order = np.concatenate([group[np.argsort(self.lengths[group], kind="stable")] for group in groups])
        batches = [order[i : i + batch_size] for i in range(0, num_sequences, batch_size)]
        if self.order == "shuffle":
            batches = [batches[i] for i in rng.permutation(len(batches))]
        if self.round_up:
            last_batch = batches[-1]
            target_size = min(batch_size, 1 << (len(last_batch) - 1).bit_length()) if len(batches) == 1 else batch_size
            batches[-1] = np.concatenate([last_batch, np.repeat(last_batch[:1], target_size - len(last_batch))])
        return batches

    def _batch(self, indices: np.ndarray, epoch: int, batch_number: int) -> Tensors:
        """Return one batch of an epoch from the indices of its sequences."""
        return self.make_batch(
            indices, self._get_padded_width(indices), np.random.default_rng((*self.seed, epoch, batch_number))
        )

    def _get_padded_width(self, indices: np.ndarray) -> int:
        """Return the padded width of a batch from the indices of its sequences."""
        # The partial batches of all epochs share one shape.
        is_partial = len(indices) < self.batch_size and not self.round_up
        return self._width(self.lengths.max() if is_partial else self.lengths[indices].max())

    def _width(self, length: int) -> int:
        """Return the smallest bucket that holds `length` tokens."""
        return smallest_bucket(self.buckets, length)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return stream_steps(len(self.lengths), self.batch_size)

    def __getitem__(self, index: int) -> Tensors:
        """Return the batch at `index` of the current pass."""
        if index == 0 and self._pass[0] != self.epoch:
            self._pass = (self.epoch, self._plan(self.epoch))
        epoch, plan = self._pass
        return self._batch(plan[index], epoch, index)

    def batches(self) -> Iterator[Tensors]:
        return itertools.islice(self.batches_from(self.epoch * len(self)), len(self))

    def join_batches(self) -> Iterator[Tensors]:
        """Yield the batches of a pass, joining consecutive batches of equal width into one batch.

        The order must be "sorted" or "given", in which only the last batch is smaller, and `make_batch` must not use
        `rng`.
        """
        for width, equal_batches in itertools.groupby(self._plan(self.epoch), self._get_padded_width):
            yield self.make_batch(np.concatenate([*equal_batches]), width, np.random.default_rng(0))

    def batches_from(self, step: int) -> Iterator[Tensors]:
        epoch, first_batch = divmod(step, len(self))
        while True:
            for batch_number, indices in enumerate(self._plan(epoch)[first_batch:], first_batch):
                yield self._batch(indices, epoch, batch_number)
            epoch += 1
            first_batch = 0

    def identity(self) -> dict[str, Any]:
        """Return digests of the lengths and of a sample of the content, and the settings that determine the batches."""
        lengths_digest = hashlib.sha256(np.asarray(self.lengths, "<i8").tobytes()).hexdigest()
        return {
            "texts": lengths_digest,
            "content of the batches": self._sample(),
            "number of texts": len(self.lengths),
            "batch size": self.batch_size,
            "order": self.order,
            "seed": self.seed[0],
        }

    def _sample(self) -> str:
        """Return a digest of the ids, labels and weights of evenly spaced examples, independent of seed and order."""
        digest = hashlib.sha256()
        num_examples = len(self.lengths)
        example_indices = np.unique(np.linspace(0, num_examples - 1, min(num_examples, _SAMPLE_SIZE)).astype("int64"))
        for batch_indices in np.array_split(example_indices, max(1, len(example_indices) // 32)):
            width = self._width(self.lengths[batch_indices].max())
            _update_digest(digest, self.make_batch(batch_indices, width, np.random.default_rng(0)))
        return digest.hexdigest()

    @property
    def example_order(self) -> np.ndarray:
        """Index of each output's example, in the order of the current epoch: int64, (n,) or longer with `round_up`."""
        return np.concatenate(self._plan(self.epoch))


class ArrayBatches(LengthBatches):
    """Batches of arrays with one row per sequence, such as token features.

    Args:
        arrays: tuple `(x, y, sample_weight)`, each a dict of arrays, an array or None. If `y` is a dict, weights (n,)
            or (n, 1) apply to each of its outputs.
        batch_size: int, number of rows per batch.
        order: `"shuffle"`, or any other string for the order of the rows.
        seed: tuple of ints, seed of the order.

    Raises:
        ValueError: If there are no rows, the arrays differ in their number of rows, or the weights do not match the
            outputs in `y`.
    """

    fixed_shapes = True

    def __init__(
        self, arrays: tuple[Any, Any, Any], batch_size: int, order: str = "given", seed: tuple[int, ...] = (0,)
    ) -> None:
        x, y, weights = (None if values is None else _convert_to_arrays(values) for values in arrays)
        if isinstance(y, dict) and isinstance(weights, np.ndarray) and weights.size == len(weights):
            weights = dict.fromkeys(y, weights)
        if weights is not None and y is not None and _describe_outputs(weights) != _describe_outputs(y):
            raise ValueError(
                f"`sample_weight` must be {_describe_outputs(y)}, as `y` is, got {_describe_outputs(weights)}."
            )
        self.arrays = (x,) if y is None else (x, y) if weights is None else (x, y, weights)
        row_counts = {len(array) if array.ndim else None for array in keras.tree.flatten(self.arrays)}
        if len(row_counts) != 1:
            shapes = keras.tree.map_structure(np.shape, self.arrays)
            raise ValueError(f"Token features, labels and weights must have a row for each sequence, got {shapes}.")
        if not (num_rows := row_counts.pop()):
            raise ValueError("There are no examples: the token features have no rows.")
        super().__init__(
            np.ones(num_rows, "int32"), lambda indices, *_: self.rows(indices), batch_size, [1], order, seed
        )

    def rows(self, indices: Any) -> Any:
        """Return the rows of every array at `indices`."""
        return keras.tree.map_structure(lambda array: array[indices], self.arrays)

    def _sample(self) -> str:
        digest = hashlib.sha256()
        _update_digest(digest, self.arrays)
        return digest.hexdigest()


def _update_digest(digest: hashlib._Hash, arrays: Tensors) -> None:
    """Add the dtypes, shapes and values of arrays to a digest."""
    for array in map(np.asarray, keras.tree.flatten(arrays)):
        digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())


def _convert_to_arrays(values: Any) -> Any:
    """Convert values to an array, or a mapping of values to a dict of arrays."""
    if isinstance(values, Mapping):
        return {name: np.asarray(array) for name, array in values.items()}
    return np.asarray(values)


def _describe_outputs(values: Any) -> str:
    """Return a description of labels or weights for error messages."""
    return f"a dict of {sorted(values)}" if isinstance(values, dict) else "an array"
