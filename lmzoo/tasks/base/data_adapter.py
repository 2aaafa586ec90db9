"""From what a user passes to what Keras' trainers take: text is encoded once and batched by length."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from lmzoo.common.tensor_types import Features, Tensors
from lmzoo.tasks.base.encoding import EncodingTask
from lmzoo.tasks.base.examples import (
    Batch,
    BatchOptions,
    Examples,
    Inputs,
    Labels,
    Texts,
    TrainingData,
    Weights,
    as_weights,
    first_held_out,
)
from lmzoo.tasks.base.input_kinds import in_batches, is_raw, is_text_stream, is_word_stream, leading_spec
from lmzoo.tasks.base.row_streams import RowStream
from lmzoo.tasks.base.tables import columns_of
from lmzoo.tasks.base.word_weights import weigh_classes, weigh_labels
from lmzoo.text import LengthBatches
from lmzoo.text.batching import ArrayBatches, fitted_buckets, ladder_buckets, least_saving
from lmzoo.text.buffered_batches import BufferedBatches
from lmzoo.text.keras_input import stream
from lmzoo.text.validate_text import FirstWarning, collect_warnings

if TYPE_CHECKING:
    import tensorflow as tf

BATCH_SIZE = 32


def make_batches(
    task: EncodingTask, x: Inputs, y: Labels | None, sample_weight: Weights | None, options: BatchOptions
) -> TrainingData:
    """`(x, y, sample_weight)` for Keras: labels checked, and text made into batches that hold all three.

    Args:
        task: its `encode_examples` and `make_batch` say how.
        x: texts, encoded texts, rows that are read on demand, a `tf.data.Dataset` of strings, or what Keras takes.
        y: labels.
        sample_weight: float array (n,).
        options: order, size and seed of the batches. In training each pass over a dataset makes its own random choices.

    Raises:
        TypeError: for numbers instead of text.
        ValueError: see `Task.encode_examples` and `checked_features`; also if there is nothing in `x`.
    """
    if isinstance(x, RowStream):
        return buffered_batches(task, x, sample_weight, options), None, None
    if is_text_stream(x):
        return _labelled_stream(task, x, options), y, sample_weight
    if not is_raw(x):
        x, y, sample_weight = _checked_arrays(task, x, y, sample_weight)
        if options.class_weight is not None:
            sample_weight = weigh_labels(x, y, sample_weight, options.class_weight)
        if not isinstance(x, dict):
            return _with_checked_weights(x), y, sample_weight
        order = options.order if task.independent_rows else "given"
        return ArrayBatches((x, y, sample_weight), options.batch_size or BATCH_SIZE, order, options.seed), None, None
    examples = task.encode_examples(x, y, sample_weight)
    if options.class_weight is not None:
        examples = weigh_classes(examples, options.class_weight)
    lengths, batch_size = examples.encoded.lengths, options.batch_size or BATCH_SIZE
    limit, compiled = task.text_preprocessor.sequence_length, bool(task.jit_compile)
    saving = least_saving(lengths, batch_size) if len(lengths) and compiled else 0
    return (
        LengthBatches(
            lengths,
            partial(task.make_batch, examples),
            batch_size,
            options.buckets or fitted_buckets(lengths, limit, saving=saving, compiled=compiled),
            options.order,
            options.seed,
        ),
        None,
        None,
    )


def buffered_batches(
    task: EncodingTask, stream: RowStream, sample_weight: Weights | None, options: BatchOptions
) -> BufferedBatches:
    """The batches of examples that are read on demand; see `make_batches`.

    Raises:
        TypeError: as `encode_examples`, naming the file and line, or the row.
        ValueError: likewise; for weights; in training, if the number of batches of an epoch is not known.
    """
    task.check_takes_text()
    if sample_weight is not None:
        raise ValueError("Examples that are read on demand take no `sample_weight`: pass a list or a table in memory.")
    size = options.batch_size or BATCH_SIZE
    if options.order == "shuffle":
        stream = stream.shuffled(options.seed[0])
    counted = None
    if options.training and options.steps is None:
        counted = None if task.splits_examples else stream.count(options.verbose)
        if counted is None:
            what = f"a {type(task).__name__} may make several sequences of an example"
            what = what if task.splits_examples else f"this {type(stream.table).__name__} has no known length"
            raise ValueError(
                f"Pass `steps_per_epoch`, the batches of an epoch, on which the learning rate depends: {what}."
            )
    warning = FirstWarning()

    def encode(rows: Sequence[Any]) -> tuple[np.ndarray, Callable[..., Batch]]:
        x, y = stream.examples(rows)
        try:
            with warning.only():
                examples = task.encode_examples(x, y)
        except (TypeError, ValueError):
            for row in rows if len(rows) > 1 else ():
                with errors_in(stream.where(*row)), collect_warnings():
                    task.encode_examples(*stream.examples([row]))
            raise
        return examples.encoded.lengths, partial(task.make_batch, examples)

    def count() -> int:
        known = stream.count(options.verbose) if counted is None else counted
        return math.ceil((sum(1 for _ in stream.rows()) if known is None else known) / size)

    return BufferedBatches(
        partial(stream.buffers, size=options.buffer, batch_size=size),
        encode,
        size,
        task.longest_sequence,
        options.order,
        options.seed,
        None if task.splits_examples else count,
        lambda: {"shuffle buffer": options.buffer, **stream.identity()},
        bool(task.jit_compile),
    )


def _checked_arrays(task: EncodingTask, x: Any, y: Labels | None, sample_weight: Weights | None) -> TrainingData:
    x, y = checked_features(task, x), task.encode_labels(y)
    return x, y, _weights_of(task, sample_weight, y)


def split_features(
    task: EncodingTask, x: Features, y: Labels | None, sample_weight: Weights | None, share: float
) -> tuple[TrainingData, TrainingData]:
    """Token features with their labels and weights: the first ones for training, the last `share` for validation.

    Raises:
        ValueError: if one of the two would be empty; as `checked_features` and `ArrayBatches`.
    """
    batches = ArrayBatches(_checked_arrays(task, x, y, sample_weight), BATCH_SIZE)
    cut = first_held_out(len(batches.lengths), share)
    first, last = ((*batches.rows(part), None, None)[:3] for part in (slice(cut), slice(cut, None)))
    return first, last


def _weights_of(task: EncodingTask, sample_weight: Weights | None, y: Any) -> Tensors:
    """Weights of token features as arrays like `y`; the weight of a sequence counts for each of its tokens.

    Raises:
        ValueError: for weights of another shape, or that are NaN, infinite or negative.
    """
    if isinstance(sample_weight, dict):  # of several outputs
        return keras.tree.map_structure(as_weights, sample_weight)
    weights = as_weights(sample_weight)
    of_tokens = task.labels_words or (task.predicts_tokens and getattr(y, "ndim", 0) == 2)
    if weights is None or y is None or not of_tokens:
        return weights
    if weights.shape not in (y.shape, y.shape[:1]):
        raise ValueError(
            f"Expected a weight for each text, of shape ({len(y)},), or for each token, {y.shape}; got weights of "
            f"shape {weights.shape}."
        )
    return weights if weights.ndim == 2 else np.repeat(weights[:, None], y.shape[1], axis=1)


def checked_features(task: EncodingTask, x: Any) -> Any:
    """`x`, which is not text, after a check; datasets and generators are checked only by what their elements are.

    Raises:
        TypeError: if it is an array of something else, or nothing that holds examples.
        ValueError: if it is a dict of arrays that the backbone cannot take.
    """
    if isinstance(x, dict):
        x = task.select_inputs(x)
        task.backbone.check_inputs(task.backbone_inputs(x))
    if (kind := type(x).__name__).startswith("Distributed"):
        raise TypeError(
            f"Expected a `tf.data.Dataset`, got a {kind}: pass the dataset itself, whose batches `fit` distributes."
        )
    if (columns := columns_of(x)) is not None:
        raise TypeError(f"Expected texts, got a table: pass one column, or two for pairs, of {columns!r:.80}.")
    listed = hasattr(x, "__getitem__") or (isinstance(x, Iterable) and not isinstance(x, Iterator))
    if not (listed or isinstance(x, Generator)):
        raise TypeError(f"Expected a list of texts, a dataset, or a dict of token features; got {x!r:.60}.")
    if hasattr(x, "shape"):
        raise TypeError(f"Expected texts, or a dict of token features, got an array of {x.dtype}.")
    record = leading_spec(x)
    parts = record.values() if isinstance(record, Mapping) else ()
    if any(getattr(getattr(part, "dtype", None), "name", None) == "string" for part in parts):
        names = [*record]
        raise TypeError(
            f"Expected a dataset of texts, or of tuples that begin with them, got one of records of {names!r:.80}: "
            f"select what you need with `map`, as in `dataset.map(lambda row: (row[{names[0]!r}], ...))`."
        )
    if isinstance(x, (set, frozenset)):
        raise TypeError("Expected a list of texts, got a set, which has no order.")
    if isinstance(x, Generator):
        taken = [*islice(x, 1)]
        for batch in taken:
            if isinstance(batch[0] if isinstance(batch, (tuple, list)) and batch else batch, (str, bytes)):
                raise TypeError("Expected a list of texts, got a generator of them: pass `list(texts)`.")
        return (batch for batches in (taken, x) for batch in batches)
    return x


@contextlib.contextmanager
def errors_in(place: str) -> Iterator[None]:
    """Says in the message of an error in the body of a `with` block which part of the data it is about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError  # some subclasses take no message
        raise kind(f"In {place}: {error}") from error


def _check_components(dataset: Any) -> None:
    spec = getattr(dataset, "element_spec", None)
    if isinstance(spec, tuple) and len(spec) > 3:
        raise ValueError(
            f"Expected a dataset of inputs, (inputs, labels) or (inputs, labels, weights), got one of {len(spec)} "
            "components: select what you need with `map`. Pairs of texts are one component, ((first, second), label)."
        )


def _with_checked_weights(x: Any) -> Any:
    """Checks the weights in a `tf.data.Dataset` of token features while it streams; anything else stays as it is."""
    _check_components(x)
    if not (hasattr(x, "enumerate") and isinstance(x.element_spec, tuple) and len(x.element_spec) == 3):
        return x
    import tensorflow as tf

    def check(index: tf.Tensor, element: tuple[Any, ...]) -> tuple[Any, ...]:
        place = tf.strings.format("In batch {} of the dataset: weights must be finite and at least 0, got", index)
        for weights in tf.nest.flatten(element[2]):
            valid = tf.math.is_finite(tf.cast(weights, "float32")) & (weights >= 0)
            tf.debugging.Assert(tf.reduce_all(valid), [place, weights])
        return element

    return x.enumerate().map(check)


def _labelled_stream(task: EncodingTask, dataset: tf.data.Dataset, options: BatchOptions) -> tf.data.Dataset:
    def encode(x: Texts, y: Labels | None, weight: Weights | None) -> Examples:
        if y is None and task.needs_labels:
            raise ValueError(f"{type(task).__name__} needs a dataset of (texts, labels); this one has texts only.")
        examples = task.encode_examples(x, y, weight)
        return examples if options.class_weight is None else weigh_classes(examples, options.class_weight)

    size = options.batch_size or BATCH_SIZE
    return stream_batches(task, dataset, size, encode, task.make_batch, options.seed, redraw=options.training)


def stream_batches(
    task: EncodingTask,
    dataset: tf.data.Dataset,
    batch_size: int,
    encode: Callable[[Texts, Labels | None, Weights | None], Examples],
    make_batch: Callable[[Examples, np.ndarray, int, np.random.Generator], Batch],
    seed: tuple[int, ...] = (0,),
    redraw: bool = False,
) -> tf.data.Dataset:
    """The batches of a dataset of strings, in its order, encoded as they stream.

    Args:
        task: what they are for.
        dataset: texts, or tuples that begin with them.
        batch_size: int, if the dataset's elements are single texts.
        encode: from the components of a batch, `(x, y, weight)`, to examples.
        make_batch: see `Task.make_batch`.
        seed: of everything random.
        redraw: whether each pass makes its own random choices.
    """
    dataset = batched(task, dataset, batch_size)
    buckets = ladder_buckets(task.longest_sequence if task.preprocessor else 1)
    spec = dataset.element_spec
    words = is_word_stream(dataset)
    ragged = isinstance(spec, tuple) and len(spec) > 1 and hasattr(spec[1], "ragged_rank")
    passes = itertools.count(-1)  # the first pass only looks at the first batch
    warning = FirstWarning()

    def generate() -> Iterator[Batch]:
        epoch, index = max(0, next(passes)) if redraw else 0, -1
        for index, element in enumerate(dataset.as_numpy_iterator()):
            x, y, weight, *_ = (*element, None, None) if isinstance(element, tuple) else (element, None, None)
            # If all rows of a ragged tensor have one length, numpy has a rectangle, as for a dense tensor.
            x, y = keras.tree.map_structure(as_list, x) if words else x, as_list(y) if ragged else y
            with warning.only(), errors_in(f"batch {index} of the dataset"):
                examples = encode(x, y, weight)
            lengths = examples.encoded.lengths
            width = buckets[int(np.searchsorted(buckets, lengths.max(initial=0)))]
            yield make_batch(examples, np.arange(len(lengths)), width, np.random.default_rng((*seed, epoch, index)))
        if index < 0:
            raise ValueError("There are no examples: the dataset is empty.")

    return stream(generate, dataset.cardinality())


def batched(task: EncodingTask, dataset: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """A dataset of strings whose elements are batches; those of `batch_size` if they were single texts.

    Raises:
        ValueError: if an element has more components than texts, labels and weights.
    """
    _check_components(dataset)
    return dataset if in_batches(dataset, task.labels_words) else dataset.ragged_batch(batch_size)


def as_list(values: Any) -> list[Any]:
    """One component of a batch as a list; a ragged array, which cannot be iterated over, is converted by itself."""
    return values.to_list() if hasattr(values, "to_list") else list(values)
