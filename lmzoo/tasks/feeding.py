"""From what a user hands over to what Keras' trainers take: text is encoded once and batched by length."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from lmzoo.tasks.inputs import is_raw, is_text_stream, leading_spec
from lmzoo.text import EncodedTexts, LengthBatches
from lmzoo.text.batching import fitted_buckets, ladder_buckets, stream
from lmzoo.text.policy import notify

if TYPE_CHECKING:
    from lmzoo.tasks.task import Task

BATCH_SIZE = 32


def encode_examples(
    task: Task, x: Any, y: Any, sample_weight: Any
) -> tuple[EncodedTexts, np.ndarray | None, np.ndarray | None]:
    """Text, labels and weights as `fit` got them, encoded and checked.

    Raises:
        TypeError: naming the position of an entry that is not text.
        ValueError: for labels that are missing, too few or not the model's.
    """
    encoded, y, sample_weight = task.encode_inputs(x), task.encode_labels(y), as_array(sample_weight)
    if y is None and task.needs_labels:
        raise ValueError(f"{type(task).__name__} needs a label for each text: pass `y`.")
    for what, array in (("labels", y), ("weights", sample_weight)):
        if array is not None and len(array) != len(encoded):
            raise ValueError(f"Got {len(encoded)} texts but {len(array)} {what}.")
    return encoded, y, sample_weight


def training_input(
    task: Task,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    batch_size: int = BATCH_SIZE,
    order: str = "sorted",
    seed: tuple[int, ...] = (0,),
    redraw: bool = False,
) -> tuple[Any, Any, Any]:
    """`(x, y, sample_weight)` for Keras: labels checked, and text made into batches that hold all three.

    Args:
        task: its `encode_inputs`, `encode_labels` and `make_batch` say how.
        x: texts, rows of encoded text, a `tf.data.Dataset` of strings, or what Keras takes.
        y: labels.
        sample_weight: float array (n,).
        batch_size: int.
        order: see `LengthBatches`.
        seed: see `LengthBatches`.
        redraw: whether each pass over a dataset draws anew what is random.

    Raises:
        TypeError: for numbers instead of text.
        ValueError: see `encode_examples` and `check_features`; also if there is nothing in `x`.
    """
    if is_text_stream(x):
        return _labelled_stream(task, x, batch_size, seed, redraw), y, sample_weight
    if not is_raw(x):
        check_features(task, x)
        return x, task.encode_labels(y), as_array(sample_weight)
    encoded, y, sample_weight = encode_examples(task, x, y, sample_weight)

    def make_batch(rows: np.ndarray, width: int, rng: np.random.Generator) -> tuple[Any, ...]:
        return task.make_batch(encoded, rows, width, y, sample_weight, rng)

    buckets = fitted_buckets(encoded.lengths, task.preprocessor.sequence_length)
    return LengthBatches(encoded.lengths, make_batch, batch_size, buckets, order, seed), None, None


def check_features(task: Task, x: Any) -> None:
    """Checks `x`, which is not text, before Keras gets it; what it would draw batches from is not looked into.

    Raises:
        TypeError: if it is an array of something else.
        ValueError: if it is a dict of arrays that the backbone cannot take; see `Backbone.check_inputs`.
    """
    if isinstance(x, dict):
        own = task.input.keys() - task.backbone.input.keys()
        task.backbone.check_inputs({name: values for name, values in x.items() if name not in own})
    if hasattr(x, "columns"):
        raise TypeError(f"Expected texts, got a table: pass one column, or two for pairs, of {[*x.columns]!r:.80}.")
    if hasattr(x, "shape"):
        raise TypeError(f"Expected texts, or a dict of token features, got an array of {x.dtype}.")
    if isinstance(x, (set, frozenset)):
        raise TypeError("Expected a list of texts, got a set, which has no order.")


def prediction_batches(task: Task, encoded: EncodedTexts, batch_size: int) -> LengthBatches:
    """Batches of features alone, in widths and sizes that repeated calls share."""
    limit = max(task.preprocessor.sequence_length, int(encoded.lengths.max()))
    make_batch = _features_of(task, encoded)
    return LengthBatches(encoded.lengths, make_batch, batch_size, ladder_buckets(limit), "sorted", round_up=True)


def prediction_stream(task: Task, dataset: Any, batch_size: int) -> Any:
    """A `tf.data.Dataset` of strings, labelled or not, as one of features."""

    def batch(encoded: EncodedTexts, width: int, *_: Any) -> tuple[Any, ...]:
        return _features_of(task, encoded)(np.arange(len(encoded)), width)

    return _stream(task, dataset, batch_size, batch, (0,))


def encode_stream(task: Task, dataset: Any) -> EncodedTexts:
    """All rows of a `tf.data.Dataset` of strings, for a task whose outputs have to be padded over all of them."""
    if leading_spec(dataset).shape.rank == 0:
        dataset = dataset.batch(BATCH_SIZE)
    inputs = (element[0] if isinstance(element, tuple) else element for element in dataset.as_numpy_iterator())
    parts = [task.encode_inputs(x) for x in inputs]
    splits = np.concatenate([[0], np.cumsum(np.concatenate([part.lengths for part in parts]))])
    return EncodedTexts(
        np.concatenate([part.token_ids for part in parts]), splits, np.concatenate([part.second for part in parts])
    )


def _labelled_stream(task: Task, dataset: Any, batch_size: int, seed: tuple[int, ...], redraw: bool) -> Any:
    def batch(encoded: EncodedTexts, width: int, rng: np.random.Generator, y: Any, weight: Any) -> tuple[Any, ...]:
        if y is None and task.needs_labels:
            raise ValueError(f"{type(task).__name__} needs a dataset of (texts, labels); this one has texts only.")
        return task.make_batch(encoded, np.arange(len(encoded)), width, task.encode_labels(y), as_array(weight), rng)

    return _stream(task, dataset, batch_size, batch, seed, redraw)


def _features_of(task: Task, encoded: EncodedTexts) -> Callable[..., tuple[Any, ...]]:
    extra = task.extra_features(encoded)

    def make_batch(rows: np.ndarray, width: int, rng: Any = None) -> tuple[Any, ...]:
        features = task.preprocessor.features(encoded, rows, width)
        return ({**features, **{name: values[rows] for name, values in extra.items()}},)

    return make_batch


def _stream(
    task: Task,
    dataset: Any,
    batch_size: int,
    make_batch: Callable[..., tuple[Any, ...]],
    seed: tuple[int, ...],
    redraw: bool = False,
) -> Any:
    """`make_batch(encoded, width, rng, y, sample_weight)` of each batch of `dataset`, in its own order."""
    if leading_spec(dataset).shape.rank == 0:
        dataset = dataset.batch(batch_size)
    buckets = ladder_buckets(task.preprocessor.sequence_length if task.preprocessor else 1)
    passes = itertools.count(-1)  # The first pass only looks at the first batch.
    said: list[str] = []

    def notify_once(message: str) -> None:
        if not said:
            said.append(message)
            notify(message)

    def generate() -> Iterator[Any]:
        epoch, index = max(0, next(passes)) if redraw else 0, -1
        for index, element in enumerate(dataset.as_numpy_iterator()):
            x, y, weight, *_ = (*element, None, None) if isinstance(element, tuple) else (element, None, None)
            encoded = task.encode_inputs(x, notify_once)
            width = buckets[int(np.searchsorted(buckets, encoded.lengths.max()))]
            rng = np.random.default_rng((*seed, epoch, index))
            yield make_batch(encoded, width, rng, y, weight)
        if index < 0:
            raise ValueError("There are no examples: the dataset is empty.")

    return stream(generate, dataset.cardinality())


@contextlib.contextmanager
def expected_retracing() -> Iterator[None]:
    """Keeps TensorFlow from warning that a function is traced for several shapes: there are as many as widths."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    def keep(record: logging.LogRecord) -> bool:
        return "triggered tf.function retracing" not in str(record.msg)

    logger = tf.get_logger()
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def is_batched(x: Any) -> bool:
    """Whether `x` comes in batches already: Keras warns if told to batch or shuffle it."""
    return isinstance(x, keras.utils.PyDataset) or hasattr(x, "element_spec")


def as_array(values: Any) -> np.ndarray | None:
    """`values` as a numpy array, None left alone."""
    return None if values is None else np.asarray(values)


def steps_in(x: Any, batch_size: int, validation_split: float = 0.0) -> int | None:
    """Batches of an epoch over `x`, if that can be known.

    Args:
        x: what Keras is about to be given.
        batch_size: int, for arrays.
        validation_split: share of the rows of arrays that is held out.
    """
    if hasattr(x, "cardinality"):
        count = int(x.cardinality())
        return count if count > 0 else None
    if isinstance(x, keras.utils.PyDataset):
        return x.num_batches
    if isinstance(x, dict):
        rows = int(len(next(iter(x.values()))) * (1 - validation_split))
        return math.ceil(rows / batch_size)
    return None
