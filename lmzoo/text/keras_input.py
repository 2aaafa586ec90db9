"""Batches in the form that Keras' trainers process fastest."""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import keras

from lmzoo.common.tensor_types import Tensors
from lmzoo.text.batching import Batches, LengthBatches

if TYPE_CHECKING:
    import tensorflow as tf

_ENDLESS = -1  # `tf.data.INFINITE_CARDINALITY`
_PREFETCHED_BATCHES = 2


def keras_input(x: Any, start: int | None = None) -> Any:
    """Convert `Batches` to the type that Keras' trainers process fastest on the current backend.

    On TensorFlow, the result is a `tf.data.Dataset` (see `stream`), since Keras would infer shapes from the first two
    batches of a `PyDataset`. On other backends, it is `x` itself, a `PyDataset`, or an iterator if `start` is set.

    Args:
        x: `Batches`; anything else is returned unchanged.
        start: int, step at which an endless stream of batches begins; None for the batches of one pass at a time.
    """
    if not isinstance(x, Batches):
        return x
    if keras.backend.backend() == "tensorflow":
        fixed_shapes = x.fixed_shapes
        if start is not None:
            return stream(partial(x.batches_from, start), _ENDLESS, x.batches, fixed=fixed_shapes)
        num_batches = x.num_batches
        return stream(x.batches, _ENDLESS if num_batches is None else num_batches, fixed=fixed_shapes)
    return x if start is None else prefetch(x.batches_from(start))


def prefetch(batches: Iterator[Tensors]) -> Iterator[Tensors]:
    """Yield batches that a thread prepares up to two steps ahead, while the model computes."""
    with ThreadPoolExecutor(1, "batches") as pool:
        futures = deque(pool.submit(next, batches, None) for _ in range(_PREFETCHED_BATCHES))
        while (batch := futures.popleft().result()) is not None:
            futures.append(pool.submit(next, batches, None))
            yield batch


def stream(
    passes: Callable[[], Iterator[Tensors]],
    cardinality: int,
    like: Callable[[], Iterator[Tensors]] | None = None,
    fixed: bool = False,
) -> tf.data.Dataset:
    """Return a `tf.data.Dataset` that calls `passes` for each pass, and yields its batches.

    Args:
        passes: callable that returns an iterator over the batches of a pass, all with the same structure and dtypes.
        cardinality: int, number of batches of a pass, or one of `tf.data`'s negative constants.
        like: callable that returns an iterator over batches with the same structure and dtypes, whose first batch
            determines the signature and is ready sooner than the first batch of `passes`; None to use `passes`.
        fixed: bool, whether batches differ only in their number of sequences. If not, no axis has a fixed size.
    """
    import tensorflow as tf

    signature = batch_signature(next((like or passes)()), fixed)
    # TensorFlow never releases a generator function. It gets a weak proxy, so that the examples and the model are
    # released with the dataset. Unlike a bound method, a partial can have a weak proxy.
    generator = partial(passes)
    dataset = tf.data.Dataset.from_generator(weakref.proxy(generator), output_signature=signature)
    if cardinality != tf.data.UNKNOWN_CARDINALITY:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    dataset = _prefetch(dataset)
    dataset.generator = generator
    return dataset


def batch_signature(batch: Tensors, fixed: bool) -> Any:
    """Return the `tf.TensorSpec` of each array in a batch.

    All axes may vary in size or, if `fixed`, only the first axis.
    """
    import tensorflow as tf

    return keras.tree.map_structure(
        lambda array: tf.TensorSpec([None, *array.shape[1:]] if fixed else [None] * array.ndim, array.dtype), batch
    )


def in_memory(batches: LengthBatches) -> tf.data.Dataset:
    """Return a `tf.data.Dataset` over the batches of one pass, all made beforehand by `LengthBatches.join_batches`.

    No Python code runs between batches, and no generator is traced: tracing would take longer than a small model takes
    for a few hundred short texts.
    """
    import tensorflow as tf

    def make_dataset(joined_batch: Tensors) -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices(joined_batch)
        if batches.fixed_shapes:
            return rows.batch(batches.batch_size)
        return rows.padded_batch(
            batches.batch_size, keras.tree.map_structure(lambda array: [None] * (array.ndim - 1), joined_batch)
        )

    return _prefetch(functools.reduce(tf.data.Dataset.concatenate, map(make_dataset, batches.join_batches())))


def _prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Prefetch batches of a dataset, without autotuning."""
    import tensorflow as tf

    # Nothing needs tuning, and the tuning thread would delay the end of a pass by seconds.
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(_PREFETCHED_BATCHES).with_options(options)
