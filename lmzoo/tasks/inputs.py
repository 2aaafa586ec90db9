"""What users pass to `fit`, `evaluate` and `predict`: the only place that looks at its types.

`read_inputs` returns texts in memory, a stream of examples, or token features. Each makes the batches that Keras takes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import keras
import numpy as np

from lmzoo.data.corpora.word_vocabulary import Document
from lmzoo.data.examples import ExampleStream, column_names
from lmzoo.families.input_checks import known_values
from lmzoo.tasks.base.examples import (
    BATCH_SIZE,
    Batch,
    BatchOptions,
    Examples,
    Labels,
    Texts,
    TrainingData,
    Weights,
    as_weights,
    first_held_out,
)
from lmzoo.tasks.word_weights import weigh_classes, weigh_labels
from lmzoo.text import Encoded, LengthBatches, Preprocessor
from lmzoo.text.batching import ArrayBatches, Batches, fitted_buckets, ladder_buckets
from lmzoo.text.buffered_batches import BufferedBatches
from lmzoo.text.keras_input import stream
from lmzoo.text.validate_text import FirstWarning, Text, collect_warnings, is_text

if TYPE_CHECKING:
    import tensorflow as tf


class Encoder(Protocol):
    """What makes batches of examples: a task, see `lmzoo.models.Task`."""

    preprocessor: Preprocessor | None
    backbone: Any
    jit_compile: bool
    independent_rows: bool
    splits_examples: bool
    predicts_tokens: bool
    needs_labels: bool
    labels_words: bool
    text_preprocessor: Preprocessor
    longest_sequence: int
    encode_examples: Callable[..., Examples]
    encode_labels: Callable[[Any], Any]
    make_batch: Callable[[Examples, np.ndarray, int, np.random.Generator], Batch]
    select_inputs: Callable[[Any], Any]
    backbone_inputs: Callable[[Any], Any]
    check_takes_text: Callable[[], None]


@dataclass(frozen=True)
class TaskInputs:
    """Inputs with their labels and weights.

    Attributes:
        x: as the user passed them.
        y: labels, or None.
        sample_weight: weights, or None.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None

    def batches(self, task: Encoder, options: BatchOptions) -> TrainingData:
        """Return `(x, y, sample_weight)` for Keras: labels checked, and texts made into batches that hold all three.

        Args:
            task: its `encode_examples` and `make_batch` define what a batch holds.
            options: order, size and seed of the batches. In training each pass over a dataset makes its own random
                choices.

        Raises:
            TypeError: for anything but texts and token features.
            ValueError: see `Task.encode_examples`; also if there are no examples.
        """
        raise NotImplementedError

    def split(self, task: Encoder, fraction: float) -> tuple[TaskInputs, TaskInputs]:
        """Return the first examples for training, and the last `fraction` of them for validation, as Keras does.

        Raises:
            ValueError: if one of the two would be empty, or if the examples are not in memory.
        """
        raise ValueError(
            f"`validation_split` needs examples in memory, got a {type(self.x).__name__}: pass `validation_data` "
            "instead."
        )


class TextsInMemory(TaskInputs):
    """Texts in a list, an array or a column, encoded or not."""

    def batches(self, task: Encoder, options: BatchOptions) -> TrainingData:
        examples = task.encode_examples(self.x, self.y, self.sample_weight)
        if options.class_weight is not None:
            examples = weigh_classes(examples, options.class_weight)
        lengths = examples.encoded.lengths
        batch_size = options.batch_size or BATCH_SIZE
        limit = task.text_preprocessor.sequence_length
        compiled = bool(task.jit_compile)
        buckets = options.buckets or fitted_buckets(lengths, limit, batch_size=batch_size, compiled=compiled)
        make_batch = partial(task.make_batch, examples)
        return LengthBatches(lengths, make_batch, batch_size, buckets, options.order, options.seed), None, None

    def split(self, task: Encoder, fraction: float) -> tuple[TaskInputs, TaskInputs]:
        first, last = task.encode_examples(self.x, self.y, self.sample_weight).split(fraction)
        return TextsInMemory(*first), TextsInMemory(*last)


class StreamedExamples(TaskInputs):
    """An `ExampleStream`, whose rows are read on demand and shuffled within a buffer."""

    x: ExampleStream

    def batches(self, task: Encoder, options: BatchOptions) -> TrainingData:
        task.check_takes_text()
        self._check(task)
        size = options.batch_size or BATCH_SIZE
        examples = self.x.shuffled(options.seed[0]) if options.order == "shuffle" else self.x
        row_count = self._count_rows(task, options) if options.training and options.steps is None else None
        warning = FirstWarning()

        def encode(rows: Sequence[Any]) -> tuple[np.ndarray, Callable[..., Batch]]:
            encoded = self._encode(task, rows, warning)
            return encoded.encoded.lengths, partial(task.make_batch, encoded)

        def count_batches() -> int:
            rows = examples.count(options.verbose) if row_count is None else row_count
            rows = sum(1 for _ in examples.rows()) if rows is None else rows
            return math.ceil(rows / size)

        batches = BufferedBatches(
            partial(examples.buffers, batch_size=size),
            encode,
            size,
            task.longest_sequence,
            options.order,
            options.seed,
            None if task.splits_examples else count_batches,
            examples.identity,
            bool(task.jit_compile),
        )
        return batches, None, None

    def _check(self, task: Encoder) -> None:
        name = type(task).__name__
        if self.y is not None:
            raise ValueError("The labels of a stream are in a column: pass its name as `label` to `lmzoo.data.stream`.")
        if self.sample_weight is not None:
            raise ValueError("A stream takes no `sample_weight`: pass texts in memory, such as a list.")
        if task.needs_labels and self.x.label is None:
            raise ValueError(f"{name} needs labels: pass the name of their column as `label` to `lmzoo.data.stream`.")

    def _count_rows(self, task: Encoder, options: BatchOptions) -> int:
        """Return the number of rows of an epoch, on which the learning rate depends."""
        if task.splits_examples:
            reason = f"a {type(task).__name__} may make several sequences of an example"
        elif (count := self.x.count(options.verbose)) is not None:
            return count
        else:
            reason = f"this {type(self.x.table).__name__} has no known length"
        raise ValueError(f"Cannot count the batches of an epoch: {reason}. Pass `steps_per_epoch`.")

    def _encode(self, task: Encoder, rows: Sequence[Any], warning: FirstWarning) -> Examples:
        """Encode numbered rows; the message of an error names the row."""
        x, y = self.x.examples(rows)
        try:
            with warning.only():
                return task.encode_examples(x, y)
        except (TypeError, ValueError):
            for row in rows if len(rows) > 1 else ():
                with errors_in(self.x.where(*row)), collect_warnings():
                    task.encode_examples(*self.x.examples([row]))
            raise


class TextDataset(TaskInputs):
    """A `tf.data.Dataset` of strings, alone or in tuples that begin with them; its order and its batches are kept."""

    def batches(self, task: Encoder, options: BatchOptions) -> TrainingData:
        def encode(x: Texts, y: Labels | None, weight: Weights | None) -> tuple[np.ndarray, Callable[..., Batch]]:
            if y is None and task.needs_labels:
                raise ValueError(f"{type(task).__name__} needs a dataset of (texts, labels); this one has texts only.")
            examples = task.encode_examples(x, y, weight)
            if options.class_weight is not None:
                examples = weigh_classes(examples, options.class_weight)
            return examples.encoded.lengths, partial(task.make_batch, examples)

        size = options.batch_size or BATCH_SIZE
        batches = self.encoded_batches(task, size, encode, options.seed, redraw=options.training)
        return batches, self.y, self.sample_weight

    def encoded_batches(
        self,
        task: Encoder,
        batch_size: int,
        encode: Callable[[Texts, Labels | None, Weights | None], tuple[np.ndarray, Callable[..., Batch]]],
        seed: tuple[int, ...] = (0,),
        redraw: bool = False,
    ) -> tf.data.Dataset:
        """Return the batches of the dataset, encoded as they stream.

        Args:
            task: the task that they are for.
            batch_size: int, used if the dataset's elements are single texts.
            encode: from the components of a batch, `(x, y, weight)`, to the lengths of its sequences and what makes a
                batch of them, as for `LengthBatches`.
            seed: ints, of everything random.
            redraw: whether each pass makes its own random choices.
        """
        dataset = self._in_batches(task, batch_size)
        buckets = ladder_buckets(task.longest_sequence if task.preprocessor else 1)
        passes = itertools.count(-1)  # the first pass only looks at the first batch
        warning = FirstWarning()

        def generate() -> Iterator[Batch]:
            epoch = max(0, next(passes)) if redraw else 0
            index = -1
            for index, (x, y, weight) in enumerate(_components(dataset)):
                with warning.only(), errors_in(f"batch {index} of the dataset"):
                    lengths, make_batch = encode(x, y, weight)
                width = buckets[int(np.searchsorted(buckets, lengths.max(initial=0)))]
                rng = np.random.default_rng((*seed, epoch, index))
                yield make_batch(np.arange(len(lengths)), width, rng)
            if index < 0:
                raise ValueError("There are no examples: the dataset is empty.")

        return stream(generate, dataset.cardinality())

    def in_memory(self, task: Encoder) -> TextsInMemory:
        """Return all texts, or pairs of texts, of the dataset."""
        inputs = [x for x, _, _ in _components(self._in_batches(task, BATCH_SIZE))]
        if inputs and isinstance(inputs[0], tuple):
            firsts, seconds = (
                [text for part in column for text in _as_list(part)] for column in zip(*inputs, strict=True)
            )
            return TextsInMemory((firsts, seconds))
        return TextsInMemory([text for part in inputs for text in _as_list(part)])

    def first_labels(self, batches: int) -> np.ndarray | None:
        """Return the labels in the first batches, flat, or None if there are none."""
        elements = self.x.take(batches).as_numpy_iterator()
        labels = [np.ravel(element[1]) for element in elements if isinstance(element, tuple) and len(element) > 1]
        return np.concatenate(labels) if labels else None

    def _in_batches(self, task: Encoder, batch_size: int) -> tf.data.Dataset:
        """Return the dataset with batches as elements, of `batch_size` if they were single texts.

        Raises:
            ValueError: if an element has more components than texts, labels and weights.
        """
        _check_components(self.x)
        spec = self.x.element_spec
        labels = spec[1] if isinstance(spec, tuple) and len(spec) > 1 else None
        rank = _leading_spec(self.x).shape.rank
        if _is_ragged(_leading_spec(self.x)):  # the words of one text have a ragged type, too
            batched = rank > 1
        elif task.labels_words and labels is not None and rank:
            batched = labels.shape.rank > 1
        else:
            batched = rank > 0
        return self.x if batched else self.x.ragged_batch(batch_size)


class TokenFeatures(TaskInputs):
    """A model's own inputs: a dict of arrays, or what else Keras draws batches from."""

    @property
    def streams(self) -> bool:
        """Whether only a part of the data is known at a time."""
        return isinstance(self.x, keras.utils.PyDataset) or hasattr(self.x, "element_spec")

    @property
    def made_by_fit(self) -> bool:
        """Whether these are batches that a task made: Keras' `fit` passes its validation data to `evaluate`."""
        return isinstance(self.x, Batches) or hasattr(self.x, "generator")

    @property
    def is_empty(self) -> bool:
        """Whether these are arrays without rows."""
        return isinstance(self.x, Mapping) and all(hasattr(v, "shape") and not len(v) for v in self.x.values())

    def batches(self, task: Encoder, options: BatchOptions) -> TrainingData:
        checked = self.checked(task)
        weights = checked.sample_weight
        if options.class_weight is not None:
            weights = checked.weigh(options.class_weight)
        if not isinstance(checked.x, Mapping):
            return _with_checked_weights(checked.x), checked.y, weights
        arrays = (checked.x, checked.y, weights)
        order = options.order if task.independent_rows else "given"
        return ArrayBatches(arrays, options.batch_size or BATCH_SIZE, order, options.seed), None, None

    def split(self, task: Encoder, fraction: float) -> tuple[TaskInputs, TaskInputs]:
        if not isinstance(self.x, Mapping):
            return super().split(task, fraction)
        checked = self.checked(task)
        rows = ArrayBatches((checked.x, checked.y, checked.sample_weight), BATCH_SIZE)
        cut = first_held_out(len(rows.lengths), fraction)
        return TokenFeatures(*rows.rows(slice(cut))), TokenFeatures(*rows.rows(slice(cut, None)))

    def checked(self, task: Encoder) -> TokenFeatures:
        """Return the features after a check; datasets and generators are checked only by what their elements are.

        Raises:
            TypeError: if `x` is an array of something else, or nothing that holds examples.
            ValueError: if `x` is a dict of arrays that the backbone cannot take.
        """
        x = self.x
        if isinstance(x, Mapping):
            x = task.select_inputs(x)
            task.backbone.check_inputs(task.backbone_inputs(x))
        else:
            x = _checked_source(x)
        y = task.encode_labels(self.y)
        return replace(self, x=x, y=y, sample_weight=_token_weights(task, self.sample_weight, y))

    def weigh(self, class_weight: Mapping[int, float]) -> np.ndarray:
        """Return the weights of tokens by their classes and by the weights that they have.

        Raises:
            ValueError: if `x` and `y` are not arrays.
        """
        if not isinstance(self.x, Mapping) or self.y is None:
            raise ValueError(
                f"`class_weight` needs texts, or arrays of token features, with labels; got a {type(self.x).__name__}: "
                "put the weights of the tokens into its batches."
            )
        return weigh_labels(self.y, self.sample_weight, class_weight)


def read_inputs(x: Any, y: Any = None, sample_weight: Any = None) -> TaskInputs:
    """Return what a user passed as texts in memory, a stream of examples, or token features."""
    if isinstance(x, ExampleStream):
        return StreamedExamples(x, y, sample_weight)
    if _is_string(_leading_spec(x)):
        return TextDataset(x, y, sample_weight)
    return TextsInMemory(x, y, sample_weight) if _is_text(x) else TokenFeatures(x, y, sample_weight)


def read_validation_data(data: Any, needs_labels: bool) -> TaskInputs:
    """Return `validation_data`: `(x, y)`, `(x, y, sample_weight)`, or anything else that is `x` alone.

    Raises:
        ValueError: for a tuple of another length.
    """
    if not isinstance(data, tuple) and not (isinstance(data, list) and needs_labels):
        return read_inputs(data)
    if not 1 <= len(data) <= 3:
        raise ValueError(f"`validation_data` must be (x, y) or (x, y, sample_weight), got {len(data)} entries.")
    return read_inputs(*data)


def are_documents(x: object) -> TypeGuard[Iterable[Document]]:
    """Return whether `x` is a collection of documents, of any kind, rather than token features."""
    if x is None or isinstance(x, (Mapping, Encoded, keras.utils.PyDataset)):
        return False
    return _is_string(_leading_spec(x)) or not hasattr(x, "element_spec")


def split_documents(documents: Iterable[Document], fraction: float) -> tuple[Sequence[Document], Sequence[Document]]:
    """Return the first documents for training, and the last `fraction` of them for validation.

    Raises:
        TypeError: if they are not a sequence.
        ValueError: if one of the two would be empty.
    """
    if not isinstance(documents, Sequence):
        raise TypeError(f"`validation_split` needs a list of documents, got a {type(documents).__name__}.")
    cut = first_held_out(len(documents), fraction)
    return documents[:cut], documents[cut:]


def list_texts(texts: Any) -> tuple[Iterable[Text], bool]:
    """Return texts to continue or to translate as a list, and whether they were one string.

    Raises:
        TypeError: for a dict of token ids.
    """
    if isinstance(texts, Mapping):
        raise TypeError(
            f"`generate` takes strings, got a dict of {', '.join(map(repr, texts))}. Pass the texts to a model with a "
            "`preprocessor`; `predict` returns the logits for token ids."
        )
    return ([texts], True) if is_text(texts) else (texts, False)


def list_rows(x: Any) -> list[Any]:
    """Return examples one by one; pairs in a tuple of two lists become tuples."""
    if isinstance(x, tuple):
        return [*zip(*x, strict=True)]
    return list(x.numpy() if hasattr(x, "numpy") else x)  # a tensor of strings


def check_not_symbolic(x: Any, task: object) -> None:
    """Check that texts are not strings in a graph, which is being built.

    Raises:
        TypeError: if they are.
    """
    for part in x if isinstance(x, tuple) else (x,):
        if hasattr(part, "shape") and _is_text_dtype(part) and known_values(part) is None:
            raise TypeError(
                f"This {type(task).__name__} encodes texts in Python, so it takes no symbolic strings. Build on its "
                "token features, `task.input`; `export` makes a model of strings."
            )


@contextlib.contextmanager
def errors_in(place: str) -> Iterator[None]:
    """Begin the message of an error with the part of the data that it is about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError  # some subclasses take no message
        raise kind(f"In {place}: {error}") from error


# === Types ===


def _leading_spec(x: object) -> Any:
    """Return the `tf.TensorSpec` of a `tf.data.Dataset`'s first component, a mapping if it is a dict; else None."""
    spec = getattr(x, "element_spec", None)
    while isinstance(spec, tuple):
        spec = spec[0] if spec else None
    return spec


def _is_string(spec: object) -> bool:
    return getattr(getattr(spec, "dtype", None), "name", None) == "string"


def _is_ragged(spec: object) -> bool:
    """Return whether a component of a dataset is ragged; of texts, they are split into words."""
    return hasattr(spec, "ragged_rank")


def _is_text_dtype(x: object) -> bool:
    """Return whether an array of numpy, pandas, TensorFlow or Keras holds strings, or objects that may be strings."""
    dtype = getattr(x, "dtype", None)
    return getattr(dtype, "name", dtype) == "string" or getattr(dtype, "kind", None) in ("U", "S", "O", "T")


def _is_text(x: object) -> TypeGuard[Texts]:
    """Return whether `x` is text, encoded or not, that the preprocessor still has to turn into model inputs."""
    # A string, too: later it is an error that says what to do.
    return isinstance(x, (Encoded, Sequence, ValuesView)) or _is_text_dtype(x)


# === Datasets ===


def _components(dataset: tf.data.Dataset) -> Iterator[tuple[Any, Any, Any]]:
    """Iterate over the texts, labels and weights of batches; ragged ones are lists."""
    spec = dataset.element_spec
    words = _is_ragged(_leading_spec(dataset))
    ragged_labels = isinstance(spec, tuple) and len(spec) > 1 and _is_ragged(spec[1])
    for element in dataset.as_numpy_iterator():
        x, y, weight = keras.utils.unpack_x_y_sample_weight(element)
        # If all rows of a ragged tensor have one length, numpy has a rectangle, as for a dense tensor.
        x = keras.tree.map_structure(_as_list, x) if words else x
        y = _as_list(y) if ragged_labels else y
        yield x, y, weight


def _as_list(values: Any) -> list[Any]:
    """Return a component of a batch as a list; a ragged array cannot be iterated over."""
    return values.to_list() if hasattr(values, "to_list") else list(values)


def _check_components(dataset: Any) -> None:
    spec = getattr(dataset, "element_spec", None)
    if isinstance(spec, tuple) and len(spec) > 3:
        raise ValueError(
            f"Expected a dataset of inputs, (inputs, labels) or (inputs, labels, weights), got one of {len(spec)} "
            "components: select what you need with `map`. Pairs of texts are one component, ((first, second), label)."
        )


# === Token features ===


def _checked_source(x: Any) -> Any:
    """Return what Keras draws batches from, after a check of its type.

    Raises:
        TypeError: if it holds no token features.
    """
    if (kind := type(x).__name__).startswith("Distributed"):
        raise TypeError(
            f"Expected a `tf.data.Dataset`, got a {kind}: pass the dataset itself, whose batches `fit` distributes."
        )
    if (columns := column_names(x)) is not None:
        advice = "pass one of them, or what `lmzoo.data.from_table` returns"
        if not hasattr(x, "__len__"):
            advice = "pass what `lmzoo.data.stream` returns"
        raise TypeError(f"Expected texts, got a table with the columns {columns!r:.80}: {advice}.")
    listed = hasattr(x, "__getitem__") or (isinstance(x, Iterable) and not isinstance(x, Iterator))
    if not (listed or isinstance(x, Generator)):
        raise TypeError(f"Expected a list of texts, a dataset, or a dict of token features; got {x!r:.60}.")
    if hasattr(x, "shape"):
        raise TypeError(f"Expected texts, or a dict of token features, got an array of {x.dtype}.")
    record = _leading_spec(x)
    if isinstance(record, Mapping) and any(map(_is_string, record.values())):
        names = [*record]
        raise TypeError(
            f"Expected a dataset of texts, or of tuples that begin with them, got one of records of {names!r:.80}: "
            f"`lmzoo.data.stream` reads them, or select what you need with `map`, as in `dataset.map(lambda row: "
            f"(row[{names[0]!r}], ...))`."
        )
    if isinstance(x, (set, frozenset)):
        raise TypeError("Expected a list of texts, got a set, which has no order.")
    return _checked_generator(x) if isinstance(x, Generator) else x


def _checked_generator(x: Generator[Any, None, None]) -> Iterator[Any]:
    """Return the generator's batches after a look at the first one."""
    first = [*itertools.islice(x, 1)]
    for batch in first:
        if isinstance(batch[0] if isinstance(batch, (tuple, list)) and batch else batch, (str, bytes)):
            raise TypeError("Expected a list of texts, got a generator of them: pass `list(texts)`.")
    return (batch for batches in (first, x) for batch in batches)


def _token_weights(task: Encoder, sample_weight: Any, y: Any) -> Any:
    """Return weights of token features as arrays like `y`; the weight of a sequence counts for each of its tokens.

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


def _with_checked_weights(x: Any) -> Any:
    """Check the weights in a `tf.data.Dataset` of token features while it streams; return anything else unchanged."""
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
