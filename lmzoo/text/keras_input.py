"""Batches in the form in which Keras' trainers process them fastest."""

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
_AHEAD = 2  # batches that are made before they are needed


def keras_input(x: Any, start: int | None = None) -> Any:
    """Convert `Batches` to what Keras' trainers process fastest on the current backend.

    On TensorFlow that is a `tf.data.Dataset`, see `stream` (Keras would infer shapes from the first two batches);
    elsewhere the `PyDataset` itself. Anything else is returned as it is. With `start`, the step of `Batches` at which
    to begin, the epochs follow one another without end.
    """
    if not isinstance(x, Batches):
        return x
    if keras.backend.backend() == "tensorflow":
        fixed = x.fixed_shapes
        if start is not None:
            return stream(partial(x.batches_from, start), _ENDLESS, x.batches, fixed=fixed)
        count = x.num_batches
        return stream(x.batches, _ENDLESS if count is None else count, fixed=fixed)
    return x if start is None else made_ahead(x.batches_from(start))


def made_ahead(batches: Iterator[Tensors]) -> Iterator[Tensors]:
    """Make batches in a thread of its own, two ahead, while the model computes others."""
    with ThreadPoolExecutor(1, "batches") as pool:
        waiting = deque(pool.submit(next, batches, None) for _ in range(_AHEAD))
        while (batch := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, batches, None))
            yield batch


def stream(
    passes: Callable[[], Iterator[Tensors]],
    cardinality: int,
    like: Callable[[], Iterator[Tensors]] | None = None,
    fixed: bool = False,
) -> tf.data.Dataset:
    """Return a `tf.data.Dataset` over the batches that each call of `passes` yields.

    Batches have equal structure and dtypes. `cardinality` is their number, or one of `tf.data`'s negative constants.
    `like` begins a pass over similar batches that yields the first one sooner. Shapes are open, except with `fixed`,
    where batches differ only in their number of sequences.
    """
    import tensorflow as tf

    first = next((like or passes)())
    signature = keras.tree.map_structure(
        lambda a: tf.TensorSpec([None, *a.shape[1:]] if fixed else [None] * a.ndim, a.dtype), first
    )
    # TensorFlow never releases a generator function. It gets a weak proxy, so that the examples and the model are
    # released with the dataset. The partial can be referred to weakly, unlike a bound method.
    generator = partial(passes)
    dataset = tf.data.Dataset.from_generator(weakref.proxy(generator), output_signature=signature)
    if cardinality != tf.data.UNKNOWN_CARDINALITY:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    dataset = _made_ahead(dataset)
    dataset.generator = generator
    return dataset


def in_memory(batches: LengthBatches) -> tf.data.Dataset:
    """Return a `tf.data.Dataset` over the batches of one pass, all made beforehand: see `LengthBatches.joined_batches`.

    No Python code runs between batches, and there is no generator to trace: that would take longer than a small model
    takes for some hundred short texts.
    """
    import tensorflow as tf

    def dataset_of(run: Tensors) -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices(run)
        if batches.fixed_shapes:
            return rows.batch(batches.batch_size)
        return rows.padded_batch(
            batches.batch_size, keras.tree.map_structure(lambda array: [None] * (array.ndim - 1), run)
        )

    return _made_ahead(functools.reduce(tf.data.Dataset.concatenate, map(dataset_of, batches.joined_batches())))


def _made_ahead(dataset: tf.data.Dataset) -> tf.data.Dataset:
    import tensorflow as tf

    # There is nothing to tune, and the thread for that would delay the end of a pass by seconds.
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(_AHEAD).with_options(options)
