"""From what a user hands over to what Keras' trainers take: text is encoded once and batched by length."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Protocol

import keras
import numpy as np

from lmzoo.progress import progress_bar
from lmzoo.tasks.base.examples import BatchOptions, Examples
from lmzoo.tasks.base.input_kinds import in_batches, is_raw, is_text_stream, is_word_stream, leading_spec
from lmzoo.text import Encoded, LengthBatches
from lmzoo.text.batching import fitted_buckets, keras_input, ladder_buckets, stream
from lmzoo.text.validate_text import FirstWarning

BATCH_SIZE = 32


class ReadsExamples(Protocol):
    """What the data adapter needs from a model; `lmzoo.models.Task` documents each of these."""

    backbone: Any
    preprocessor: Any
    needs_labels: bool
    per_token: ClassVar[bool]
    labels_words: ClassVar[bool]

    @property
    def encode_inputs(self) -> Callable[[Any], Any]:
        """See `Task.encode_inputs`."""

    @property
    def encode_examples(self) -> Callable[..., Examples]:
        """See `Task.encode_examples`."""

    @property
    def encode_labels(self) -> Callable[[Any], Any]:
        """See `Task.encode_labels`."""

    @property
    def make_batch(self) -> Callable[[Examples, np.ndarray, int, np.random.Generator], tuple[Any, ...]]:
        """See `Task.make_batch`."""

    @property
    def features(self) -> Callable[[Any, np.ndarray, int], dict[str, np.ndarray]]:
        """See `Task.features`."""

    @property
    def extra_features(self) -> Callable[[Any], dict[str, np.ndarray]]:
        """See `Task.extra_features`."""

    @property
    def backbone_inputs(self) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """See `Task.backbone_inputs`."""


def make_batches(
    task: ReadsExamples, x: Any, y: Any, sample_weight: Any, options: BatchOptions
) -> tuple[Any, Any, Any]:
    """`(x, y, sample_weight)` for Keras: labels checked, and text made into batches that hold all three.

    Args:
        task: its `encode_examples` and `make_batch` say how.
        x: texts, encoded texts, a `tf.data.Dataset` of strings, or what Keras takes.
        y: labels.
        sample_weight: float array (n,).
        options: order, size and seed of the batches. In training each pass over a dataset draws anew what is random.

    Raises:
        TypeError: for numbers instead of text.
        ValueError: see `Task.encode_examples` and `check_features`; also if there is nothing in `x`.
    """
    if is_text_stream(x):
        return _labelled_stream(task, x, options), y, sample_weight
    if not is_raw(x):
        check_features(task, x)
        y = task.encode_labels(y)
        return x, y, _weights_of(task, sample_weight, y)
    examples = task.encode_examples(x, y, sample_weight)
    lengths = examples.encoded.lengths
    return (
        LengthBatches(
            lengths,
            partial(task.make_batch, examples),
            options.batch_size or BATCH_SIZE,
            fitted_buckets(lengths, task.preprocessor.sequence_length),
            options.order,
            options.seed,
        ),
        None,
        None,
    )


def _weights_of(task: ReadsExamples, sample_weight: Any, y: Any) -> Any:
    """Weights of token features as arrays like `y`; one for a sequence counts for each of its tokens.

    Raises:
        ValueError: for weights of another shape.
    """
    if isinstance(sample_weight, dict):  # of several outputs
        return keras.tree.map_structure(as_array, sample_weight)
    weights = as_array(sample_weight)
    if weights is None or y is None or not task.labels_words:
        return weights
    if weights.shape not in (y.shape, y.shape[:1]):
        raise ValueError(
            f"Expected a weight for each text, of shape ({len(y)},), or for each token, {y.shape}; got weights of "
            f"shape {weights.shape}."
        )
    return weights if weights.ndim == 2 else np.repeat(weights[:, None], y.shape[1], axis=1)


def check_features(task: ReadsExamples, x: Any) -> None:
    """Checks `x`, which is not text, before Keras gets it; what it would draw batches from is not looked into.

    Raises:
        TypeError: if it is an array of something else.
        ValueError: if it is a dict of arrays that the backbone cannot take; see `Task.backbone_inputs`.
    """
    if isinstance(x, dict):
        task.backbone.check_inputs(task.backbone_inputs(x))
    columns = getattr(x, "columns", None) if hasattr(x, "columns") else getattr(x, "column_names", None)
    if columns is not None:  # of pandas, or of Hugging Face's datasets
        raise TypeError(f"Expected texts, got a table: pass one column, or two for pairs, of {[*columns]!r:.80}.")
    if hasattr(x, "shape"):
        raise TypeError(f"Expected texts, or a dict of token features, got an array of {x.dtype}.")
    record = leading_spec(x)
    parts = record.values() if isinstance(record, Mapping) else ()
    if any(getattr(getattr(part, "dtype", None), "name", None) == "string" for part in parts):
        names = [*record]
        raise TypeError(
            f"Expected a dataset of texts, or of tuples that begin with them, got one of records of {names!r:.80}: "
            f"take what you need out of them by its `map`, as in `dataset.map(lambda row: (row[{names[0]!r}], ...))`."
        )
    if isinstance(x, (set, frozenset)):
        raise TypeError("Expected a list of texts, got a set, which has no order.")


def predict_encoded(
    task: ReadsExamples,
    predict: Callable[..., Any],
    encoded: Encoded,
    batch_size: int,
    verbose: Any = "auto",
    per_token: bool | None = None,
    **kwargs: Any,
) -> Any:
    """The model's outputs for rows of encoded text, in their order: an array, or several as the model names them.

    Batches come in widths and sizes that repeated calls share. Outputs for each token are zero beyond a batch's width.

    Args:
        task: its `features`, `extra_features` and `per_token` say how.
        predict: `keras.Model.predict` of the task, or of another model with the same inputs.
        encoded: n rows, at least one.
        batch_size: int.
        verbose: as in Keras.
        per_token: whether the outputs' second axis is that of the tokens, if it is not as the task says.
        **kwargs: of `predict`.
    """
    buckets = ladder_buckets(max(task.preprocessor.sequence_length, int(encoded.lengths.max())))
    make_batch = _features_of(task, encoded)
    if task.per_token if per_token is None else per_token:
        return _predict_tokens(predict, encoded.lengths, make_batch, batch_size, buckets, verbose, **kwargs)
    batches = LengthBatches(encoded.lengths, make_batch, batch_size, buckets, "sorted", round_up=True)
    outputs = predict(keras_input(batches), verbose=verbose, **kwargs)
    order = batches.example_order

    def in_order(output: np.ndarray) -> np.ndarray:
        result = np.empty((len(encoded), *output.shape[1:]), output.dtype)
        result[order] = output
        return result

    return keras.tree.map_structure(in_order, outputs)


def _predict_tokens(
    predict: Callable[..., Any],
    lengths: np.ndarray,
    make_batch: Callable[..., tuple[Any, ...]],
    batch_size: int,
    buckets: list[int],
    verbose: Any,
    callbacks: Any = None,
    **kwargs: Any,
) -> np.ndarray:
    """Outputs (n, t, ...) from a call of `predict` for each width, since Keras joins only outputs of one shape."""
    widths = np.asarray(buckets)[np.searchsorted(buckets, lengths)]  # (n,)
    groups = {int(width): np.flatnonzero(widths == width) for width in np.unique(widths)}
    results, count = [], sum(-(-len(rows) // batch_size) for rows in groups.values())
    with progress_bar("Predicting", count, "batches", shown=bool(verbose)) as advance:
        progress = keras.callbacks.Callback()
        progress.on_predict_batch_end = lambda batch, logs=None: advance(1)
        for width, rows in groups.items():
            batches = LengthBatches(
                lengths[rows], partial(_part, make_batch, rows), batch_size, [width], "sorted", round_up=True
            )
            outputs = predict(keras_input(batches), verbose=0, callbacks=[*(callbacks or []), progress], **kwargs)
            results.append((rows[batches.example_order], outputs))
    result = np.zeros((len(lengths), max(groups), *outputs.shape[2:]), outputs.dtype)
    for rows, outputs in results:
        result[rows, : outputs.shape[1]] = outputs
    return result


def _part(make_batch: Callable[..., Any], rows: np.ndarray, chosen: np.ndarray, width: int, rng: Any) -> Any:
    return make_batch(rows[chosen], width)


def prediction_stream(task: ReadsExamples, dataset: Any, batch_size: int) -> Any:
    """A `tf.data.Dataset` of strings, labelled or not, as one of features."""

    def encode(x: Any, y: Any, weight: Any) -> Examples:
        return Examples(task.encode_inputs(x))

    def batch(examples: Examples, rows: np.ndarray, width: int, rng: Any) -> tuple[Any, ...]:
        return _features_of(task, examples.encoded)(rows, width)

    return _stream(task, dataset, batch_size, encode, batch)


def texts_of_stream(task: ReadsExamples, dataset: Any) -> Any:
    """All texts, or pairs of texts, of a `tf.data.Dataset` of strings, labelled or not."""
    elements = list(_batched(task, dataset, BATCH_SIZE).as_numpy_iterator())
    inputs = [element[0] if isinstance(element, tuple) else element for element in elements]
    if inputs and isinstance(inputs[0], tuple):
        return tuple([row for part in column for row in _rows(part)] for column in zip(*inputs, strict=True))
    return list(itertools.chain.from_iterable(map(_rows, inputs)))


def _rows(part: Any) -> Any:
    return part.to_list() if hasattr(part, "to_list") else list(part)  # ragged ones cannot be gone through


def _batched(task: ReadsExamples, dataset: Any, batch_size: int) -> Any:
    return dataset if in_batches(dataset, task.labels_words) else dataset.ragged_batch(batch_size)


def _labelled_stream(task: ReadsExamples, dataset: Any, options: BatchOptions) -> Any:
    def encode(x: Any, y: Any, weight: Any) -> Examples:
        if y is None and task.needs_labels:
            raise ValueError(f"{type(task).__name__} needs a dataset of (texts, labels); this one has texts only.")
        return task.encode_examples(x, y, weight)

    size = options.batch_size or BATCH_SIZE
    return _stream(task, dataset, size, encode, task.make_batch, options.seed, redraw=options.training)


def _features_of(task: ReadsExamples, encoded: Encoded) -> Callable[..., tuple[Any, ...]]:
    extra = task.extra_features(encoded)

    def make_batch(rows: np.ndarray, width: int, rng: Any = None) -> tuple[Any, ...]:
        features = task.features(encoded, rows, width)
        return ({**features, **{name: values[rows] for name, values in extra.items()}},)

    return make_batch


def _stream(
    task: ReadsExamples,
    dataset: Any,
    batch_size: int,
    encode: Callable[[Any, Any, Any], Examples],
    make_batch: Callable[[Examples, np.ndarray, int, np.random.Generator], tuple[Any, ...]],
    seed: tuple[int, ...] = (0,),
    redraw: bool = False,
) -> Any:
    """`make_batch(examples, rows, width, rng)` of each batch of `dataset`, in its own order.

    `examples` is what `encode(x, y, weight)` makes of the batch's components.
    """
    dataset = _batched(task, dataset, batch_size)
    buckets = ladder_buckets(task.preprocessor.sequence_length if task.preprocessor else 1)
    spec = dataset.element_spec
    words = is_word_stream(dataset)
    ragged = isinstance(spec, tuple) and len(spec) > 1 and hasattr(spec[1], "ragged_rank")
    passes = itertools.count(-1)  # The first pass only looks at the first batch.
    warning = FirstWarning()

    def generate() -> Iterator[Any]:
        epoch, index = max(0, next(passes)) if redraw else 0, -1
        for index, element in enumerate(dataset.as_numpy_iterator()):
            x, y, weight, *_ = (*element, None, None) if isinstance(element, tuple) else (element, None, None)
            # Where all rows are as long, their array looks like that of a dense tensor.
            x, y = keras.tree.map_structure(_rows, x) if words else x, _rows(y) if ragged else y
            with warning.only():
                examples = encode(x, y, weight)
            lengths = examples.encoded.lengths
            width = buckets[int(np.searchsorted(buckets, lengths.max()))]
            yield make_batch(examples, np.arange(len(lengths)), width, np.random.default_rng((*seed, epoch, index)))
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
