"""Conversion of the data that users pass to `fit`, `evaluate` and `predict` into batches for Keras.

Only this module depends on the types of users' data. `read_inputs` wraps the data as texts in memory, a dataset of
texts, a stream of examples, or token features: subclasses of `TaskInputs`, which have a method that makes batches.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

import keras
import numpy as np

from lmzoo.common.arguments import is_integer, require
from lmzoo.data.corpora.word_vocabulary import Document
from lmzoo.data.examples import ExampleStream, column_names
from lmzoo.families.input_checks import get_concrete_values
from lmzoo.tasks.base.examples import (
    BATCH_SIZE,
    Batch,
    BatchOptions,
    Examples,
    Labels,
    Texts,
    TrainingData,
    Weights,
    as_example_weights,
    as_weights,
    find_first_held_out,
)
from lmzoo.tasks.word_weights import weigh_classes, weigh_labels
from lmzoo.text import Encoded, LengthBatches, Preprocessor
from lmzoo.text.batching import ArrayBatches, Batches, fit_buckets, ladder_buckets, smallest_bucket
from lmzoo.text.buffered_batches import BufferedBatches
from lmzoo.text.keras_input import stream
from lmzoo.text.validate_text import Text, TextWarningFilter, as_single_text, collect_warnings

if TYPE_CHECKING:
    import tensorflow as tf


# Sequences of token ids, or a single sequence; see `as_id_lists`.
TokenIds: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | np.ndarray | Mapping[str, np.ndarray]


_KERAS_HUB_PAIRS = {"encoder_text", "decoder_text"}  # names of sources and targets in KerasHub


class Encoder(Protocol):
    """Protocol of a task, with the attributes that are needed to make batches; see `lmzoo.models.Task`."""

    preprocessor: Preprocessor | None
    backbone: Any
    jit_compile: bool
    independent_rows: bool
    splits_examples: bool
    needs_labels: bool
    labels_words: bool
    labels_tokens: bool
    text_preprocessor: Preprocessor
    longest_sequence: int
    encode_examples: Callable[..., Examples]
    encode_part: Callable[..., Examples]
    encode_labels: Callable[[Any], Any]
    encode_feature_labels: Callable[[Any, Any], Any]
    count_rows_per_example: Callable[[Any], int]
    make_batch: Callable[[Examples, np.ndarray, int, np.random.Generator], Batch]
    select_inputs: Callable[[Any], Any]
    backbone_inputs: Callable[[Any], Any]
    check_takes_text: Callable[[], None]


@dataclass(frozen=True)
class TaskInputs:
    """Base class of users' inputs with their labels and weights.

    Attributes:
        x: the user's inputs.
        y: labels, or None.
        sample_weight: weights, or None.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None

    @property
    def holds_batches(self) -> bool:
        """Whether `x` yields the batches of token features that the model takes."""
        return False

    def batches(self, task: Encoder, options: BatchOptions) -> TrainingData:
        """Return `(x, y, sample_weight)` for Keras, with labels checked and texts converted to batches.

        Batches of texts already hold their labels and weights; `y` and `sample_weight` are then None.

        Args:
            task: task whose `encode_examples` and `make_batch` make the batches.
            options: order, size and seed of the batches. In training, each pass over a dataset makes new random
                choices.

        Raises:
            TypeError: If the type of the inputs is not supported.
            ValueError: If there are no examples; see also `Task.encode_examples`.
        """
        raise NotImplementedError

    def split(self, task: Encoder, fraction: float) -> tuple[TaskInputs, TaskInputs]:
        """Hold out the last `fraction` of the examples, and return `(training, validation)`.

        Raises:
            ValueError: If one of the sets would be empty, or if the examples are not in memory.
        """
        raise ValueError(
            f"`validation_split` needs examples in memory, got a {type(self.x).__name__}: pass `validation_data` "
            "instead."
        )


def _make_batch(task: Encoder, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
    """Return a batch whose features are only the model's inputs, although a preprocessor may make other features."""
    features, *rest = task.make_batch(examples, indices, width, rng)
    return task.select_inputs(features), *rest


class TextsInMemory(TaskInputs):
    """Texts in memory: a list, an array or a column of texts, or encoded texts."""

    def batches(self, task: Encoder, options: BatchOptions) -> TrainingData:
        examples = task.encode_examples(self.x, self.y, self.sample_weight)
        if options.class_weight is not None:
            examples = weigh_classes(examples, options.class_weight)
        lengths = examples.encoded.lengths
        batch_size = options.batch_size or BATCH_SIZE
        max_length = task.text_preprocessor.sequence_length
        is_compiled = bool(task.jit_compile)
        buckets = options.buckets or fit_buckets(lengths, max_length, batch_size=batch_size, compiled=is_compiled)
        make_batch = partial(_make_batch, task, examples)
        return LengthBatches(lengths, make_batch, batch_size, buckets, options.order, options.seed), None, None

    def split(self, task: Encoder, fraction: float) -> tuple[TaskInputs, TaskInputs]:
        training, validation = task.encode_examples(self.x, self.y, self.sample_weight).split(fraction)
        return TextsInMemory(*training), TextsInMemory(*validation)


class StreamedExamples(TaskInputs):
    """Examples of an `ExampleStream`, which are read row by row and shuffled within a buffer."""

    x: ExampleStream

    def batches(self, task: Encoder, options: BatchOptions) -> TrainingData:
        task.check_takes_text()
        self._check(task)
        batch_size = options.batch_size or BATCH_SIZE
        example_stream = self.x.shuffled(options.seed[0]) if options.order == "shuffle" else self.x
        row_count = self._count_rows(task, options) if options.training and options.steps is None else None
        warning_filter = TextWarningFilter()

        def encode(rows: Sequence[Any]) -> tuple[np.ndarray, Callable[..., Batch]]:
            examples = self._encode(task, rows, warning_filter)
            return examples.encoded.lengths, partial(_make_batch, task, examples)

        def count_batches() -> int:
            count = example_stream.count(options.verbose) if row_count is None else row_count
            count = sum(1 for _ in example_stream.rows()) if count is None else count
            return math.ceil(count / batch_size)

        batches = BufferedBatches(
            partial(example_stream.buffers, batch_size=batch_size),
            encode,
            batch_size,
            task.longest_sequence,
            options.order,
            options.seed,
            None if task.splits_examples else count_batches,
            example_stream.identity,
            bool(task.jit_compile),
        )
        return batches, None, None

    def _check(self, task: Encoder) -> None:
        """Check that the stream has the labels that the task needs, and that neither `y` nor weights are passed."""
        task_name = type(task).__name__
        if self.y is not None:
            raise ValueError("The labels of a stream are in a column: pass its name as `label` to `lmzoo.data.stream`.")
        if self.sample_weight is not None:
            raise ValueError("A stream takes no `sample_weight`: pass texts in memory, such as a list.")
        if task.needs_labels and self.x.label is None:
            raise ValueError(
                f"{task_name} needs labels: pass the name of their column as `label` to `lmzoo.data.stream`."
            )

    def _count_rows(self, task: Encoder, options: BatchOptions) -> int:
        """Return the number of rows in an epoch, which the learning rate schedule needs.

        Raises:
            ValueError: If the number is unknown.
        """
        if task.splits_examples:
            reason = f"a {type(task).__name__} may make several sequences of an example"
        elif (count := self.x.count(options.verbose)) is not None:
            return count
        else:
            reason = f"this {type(self.x.table).__name__} has no known length"
        raise ValueError(f"Cannot count the batches of an epoch: {reason}. Pass `steps_per_epoch`.")

    def _encode(self, task: Encoder, rows: Sequence[Any], warning_filter: TextWarningFilter) -> Examples:
        """Encode numbered rows of the stream; if that fails, name the first invalid row in the error message."""
        x, y = self.x.examples(rows)
        try:
            with warning_filter.once_per_reason():
                return task.encode_part(x, y)
        except (TypeError, ValueError):
            for row in rows if len(rows) > 1 else ():
                with add_place_to_errors(self.x.where(*row)), collect_warnings():
                    task.encode_part(*self.x.examples([row]))
            raise


class TextDataset(TaskInputs):
    """A `tf.data.Dataset` of strings, or of tuples that begin with strings; its order and batches are kept."""

    def batches(self, task: Encoder, options: BatchOptions) -> TrainingData:
        def encode(x: Texts, y: Labels | None, weights: Weights | None) -> tuple[np.ndarray, Callable[..., Batch]]:
            if y is None and task.needs_labels:
                raise ValueError(f"{type(task).__name__} needs a dataset of (texts, labels); this one has texts only.")
            examples = task.encode_part(x, y, weights)
            if options.class_weight is not None:
                examples = weigh_classes(examples, options.class_weight)
            return examples.encoded.lengths, partial(_make_batch, task, examples)

        batch_size = options.batch_size or BATCH_SIZE
        batches = self.encoded_batches(task, batch_size, encode, options.seed, redraw=options.training)
        return batches, self.y, self.sample_weight

    def encoded_batches(
        self,
        task: Encoder,
        batch_size: int,
        encode: Callable[[Texts, Labels | None, Weights | None], tuple[np.ndarray, Callable[..., Batch]]],
        seed: tuple[int, ...] = (0,),
        redraw: bool = False,
    ) -> tf.data.Dataset:
        """Return a dataset of batches that are encoded during iteration.

        Args:
            task: task for which the batches are encoded.
            batch_size: int, examples per batch if the dataset's elements are single texts.
            encode: function from a batch's components, `(x, y, weights)`, to the lengths of its sequences and a
                function that makes a batch of them, see `LengthBatches`.
            seed: ints, seed of all random choices.
            redraw: whether each pass makes new random choices.
        """
        dataset = self._ensure_batched(task, batch_size)
        buckets = ladder_buckets(task.longest_sequence if task.preprocessor else 1)
        pass_numbers = itertools.count(-1)  # the first pass reads one batch, for the dataset's signature
        warning_filter = TextWarningFilter()

        def generate() -> Iterator[Batch]:
            epoch = max(0, next(pass_numbers)) if redraw else 0
            batch_index = -1
            for batch_index, (x, y, weights) in enumerate(_iterate_components(dataset)):
                with warning_filter.once_per_reason(), add_place_to_errors(f"batch {batch_index} of the dataset"):
                    lengths, make_batch = encode(x, y, weights)
                width = smallest_bucket(buckets, int(lengths.max(initial=0)))
                rng = np.random.default_rng((*seed, epoch, batch_index))
                yield make_batch(np.arange(len(lengths)), width, rng)
            if batch_index < 0:
                raise ValueError("There are no examples: the dataset is empty.")

        return stream(generate, dataset.cardinality())

    def in_memory(self, task: Encoder, batch_size: int, steps: int | None = None) -> TextsInMemory:
        """Read the texts or pairs of texts in the dataset into memory.

        Args:
            task: task that will take the texts.
            batch_size: int, examples per batch if the dataset's elements are single texts.
            steps: int, number of batches to read; None to read all.
        """
        dataset = self._ensure_batched(task, batch_size)
        if steps is not None:
            dataset = dataset.take(steps)
        batches = [x for x, _, _ in _iterate_components(dataset)]
        if batches and isinstance(batches[0], tuple):
            firsts, seconds = (
                [text for batch in column for text in _convert_to_list(batch)] for column in zip(*batches, strict=True)
            )
            return TextsInMemory((firsts, seconds))
        return TextsInMemory([text for batch in batches for text in _convert_to_list(batch)])

    def first_labels(self, batches: int) -> np.ndarray | None:
        """Return the labels in the first `batches` elements as a flat array, or None for a dataset without labels."""
        elements = self.x.take(batches).as_numpy_iterator()
        labels = [np.ravel(element[1]) for element in elements if isinstance(element, tuple) and len(element) > 1]
        return np.concatenate(labels) if labels else None

    def _ensure_batched(self, task: Encoder, batch_size: int) -> tf.data.Dataset:
        """Return the dataset with batches as elements, batching single texts by `batch_size`.

        Raises:
            ValueError: If an element has more components than texts, labels and weights, or the rank of texts or of
                labels of words is unknown.
        """
        _check_components(self.x)
        spec = self.x.element_spec
        label_spec = spec[1] if isinstance(spec, tuple) and len(spec) > 1 else None
        rank = _get_rank(_get_leading_spec(self.x), "texts", "[]", "[None]")
        if _is_ragged(_get_leading_spec(self.x)):  # the words of a single text also have a ragged type
            is_batched = rank > 1
        elif task.labels_words and label_spec is not None and rank:
            is_batched = _get_rank(label_spec, "labels", "[None]", "[None, None]") > 1
        else:
            is_batched = rank > 0
        return self.x if is_batched else self.x.ragged_batch(batch_size)


class TokenFeatures(TaskInputs):
    """Token features, a model's own inputs: a dict of arrays, or another source of batches that Keras accepts."""

    @property
    def holds_batches(self) -> bool:
        """Whether `x` is a source of batches, not a dict of arrays."""
        return not isinstance(self.x, Mapping)

    @property
    def streams(self) -> bool:
        """Whether `x` is a `PyDataset` or a `tf.data.Dataset`, which is never held in memory as a whole."""
        return isinstance(self.x, keras.utils.PyDataset) or hasattr(self.x, "element_spec")

    @property
    def made_by_fit(self) -> bool:
        """Whether `fit` has already made these batches, which Keras passes to `evaluate` as validation data."""
        return isinstance(self.x, Batches) or hasattr(self.x, "generator")

    @property
    def is_empty(self) -> bool:
        """Whether the features are arrays without rows."""
        return isinstance(self.x, Mapping) and all(hasattr(v, "shape") and not len(v) for v in self.x.values())

    def batches(self, task: Encoder, options: BatchOptions) -> TrainingData:
        checked_inputs = self.check(task)
        weights = checked_inputs.weigh(options.class_weight)
        if checked_inputs.holds_batches:
            return _check_dataset_weights(checked_inputs.x), checked_inputs.y, weights
        group_size = task.count_rows_per_example(checked_inputs.y)
        batch_size = options.batch_size or max(1, BATCH_SIZE // group_size) * group_size
        advice = f"An example has {group_size} rows of token features."
        require(batch_size % group_size == 0, "batch_size", f"a multiple of {group_size}", batch_size, advice)
        arrays = (checked_inputs.x, checked_inputs.y, weights)
        order = options.order if task.independent_rows else "given"
        batches = ArrayBatches(arrays, batch_size, order, options.seed)
        _check_row_count(len(batches.lengths), group_size)
        return batches, None, None

    def as_batch(self, task: Encoder, class_weight: Mapping[int, float] | None) -> TrainingData:
        """Return `(x, y, sample_weight)` of a single batch, checked if `x` is a dict of arrays."""
        inputs = self if self.holds_batches else self.check(task)
        return inputs.x, inputs.y, inputs.weigh(class_weight)

    def split(self, task: Encoder, fraction: float) -> tuple[TaskInputs, TaskInputs]:
        if self.holds_batches:
            return super().split(task, fraction)
        checked_inputs = self.check(task)
        group_size = task.count_rows_per_example(checked_inputs.y)
        batches = ArrayBatches((checked_inputs.x, checked_inputs.y, checked_inputs.sample_weight), BATCH_SIZE)
        _check_row_count(len(batches.lengths), group_size)
        cut = find_first_held_out(len(batches.lengths), fraction, lambda row: row - row % group_size)
        return TokenFeatures(*batches.rows(slice(cut))), TokenFeatures(*batches.rows(slice(cut, None)))

    def check(self, task: Encoder) -> TokenFeatures:
        """Check the features, labels and weights, and convert the labels and weights to arrays.

        Of a dataset, only the types of the elements are checked, and of a generator, only whether its first batch is
        text.

        Raises:
            TypeError: If `x` is an array that does not hold text, or another object that does not hold examples.
            ValueError: If `x` is a dict of arrays that the backbone cannot take, or labels or weights are invalid.
        """
        x = self.x
        if isinstance(x, Mapping):
            x = task.select_inputs(x)
            task.backbone.check_inputs(task.backbone_inputs(x))
            y = task.encode_feature_labels(x, self.y)
        else:
            x = _check_source(x)
            y = task.encode_labels(self.y)
        return replace(self, x=x, y=y, sample_weight=_check_token_weights(task, self.sample_weight, y))

    def weigh(self, class_weight: Mapping[int, float] | None) -> Any:
        """Return the sample weights, multiplied by the class weights of the labels if `class_weight` is not None.

        Raises:
            ValueError: If there are class weights, but `x` is not a dict of arrays, or there are no labels.
        """
        if class_weight is None:
            return self.sample_weight
        if self.holds_batches or self.y is None:
            raise ValueError(
                f"`class_weight` needs texts, or arrays of token features, with labels; got a {type(self.x).__name__}: "
                "put the weights into its batches."
            )
        weights = as_example_weights(self.sample_weight) if self.y.ndim == 1 else self.sample_weight
        return weigh_labels(self.y, weights, class_weight)


def read_inputs(x: Any, y: Any = None, sample_weight: Any = None) -> TaskInputs:
    """Wrap a user's data as texts in memory, a dataset of texts, a stream of examples, or token features."""
    if isinstance(x, Mapping) and x.keys() == _KERAS_HUB_PAIRS:
        x = x["encoder_text"], x["decoder_text"]
    if isinstance(x, ExampleStream):
        return StreamedExamples(x, y, sample_weight)
    spec = _get_leading_spec(x)
    if isinstance(spec, Mapping) and spec.keys() == _KERAS_HUB_PAIRS:
        x = x.map(lambda pair, *rest: ((pair["encoder_text"], pair["decoder_text"]), *rest))
        return TextDataset(x, y, sample_weight)
    if _is_string(spec):
        return TextDataset(x, y, sample_weight)
    return TextsInMemory(x, y, sample_weight) if _is_text(x) else TokenFeatures(x, y, sample_weight)


def read_validation_data(data: Any, needs_labels: bool) -> TaskInputs:
    """Wrap the `validation_data` of `fit`: `(x, y)`, `(x, y, sample_weight)`, or `x` alone.

    If `needs_labels` is True, a list is read like a tuple; otherwise a list is `x`.

    Raises:
        ValueError: If `data` is a tuple, or is read like a tuple, and has no entries or more than three.
    """
    if not isinstance(data, tuple) and not (isinstance(data, list) and needs_labels):
        return read_inputs(data)
    if not 1 <= len(data) <= 3:
        raise ValueError(f"`validation_data` must be (x, y) or (x, y, sample_weight), got {len(data)} entries.")
    return read_inputs(*data)


def are_documents(x: object) -> TypeGuard[Iterable[Document]]:
    """Return whether `x` is a collection of documents rather than token features or encoded documents."""
    if x is None or isinstance(x, (Mapping, Encoded, keras.utils.PyDataset)):
        return False
    return _is_string(_get_leading_spec(x)) or not hasattr(x, "element_spec")


def are_pairs(x: object) -> bool:
    """Return whether `x` is pairs of texts: a tuple of two lists, or a list of tuples."""
    return isinstance(x, tuple) or (isinstance(x, list) and bool(x) and isinstance(x[0], tuple))


def split_documents(documents: Iterable[Document], fraction: float) -> tuple[Sequence[Document], Sequence[Document]]:
    """Hold out the last `fraction` of the documents, and return `(training, validation)`.

    Raises:
        TypeError: If `documents` is not a sequence.
        ValueError: If one of the sets would be empty.
    """
    if not isinstance(documents, Sequence):
        raise TypeError(f"`validation_split` needs a list of documents, got a {type(documents).__name__}.")
    cut = find_first_held_out(len(documents), fraction)
    return documents[:cut], documents[cut:]


def list_texts(texts: Any) -> tuple[Iterable[Text], bool]:
    """Return `texts` as an iterable, and whether a single string was passed.

    Raises:
        TypeError: If `texts` is a dict, except for KerasHub's `{"encoder_text": texts}`, or a `tf.data.Dataset`.
    """
    if isinstance(texts, Mapping) and [*texts] == ["encoder_text"]:  # as in KerasHub
        texts = texts["encoder_text"]
    if isinstance(texts, Mapping):
        raise TypeError(
            f"`generate` takes strings or token ids, got a dict of {', '.join(map(repr, texts))}. Pass a list of "
            "strings, or a dict of `token_ids` and `padding_mask`. For a Seq2SeqLM it may also have "
            "`decoder_token_ids`, beginnings of the targets."
        )
    if hasattr(texts, "element_spec"):
        raise TypeError(f"`generate` takes a list of strings, got a {type(texts).__name__}. Pass its texts as a list.")
    text = as_single_text(texts)
    return (texts, False) if text is None else ([text], True)


def as_id_lists(ids: Any) -> tuple[list[list[int]], bool] | None:
    """Return sequences of token ids as lists, and whether a single sequence was passed; or None for anything else.

    Args:
        ids: texts or token ids. Token ids are one sequence (a list of ints, or an int array or tensor (T,)), n
            sequences (lists of ints, or an int array or tensor (n, T)), or a dict of `token_ids` (n, T) and optionally
            `padding_mask` (n, T).
    """
    if isinstance(ids, Mapping):
        return (_select_real_tokens(ids, ""), False) if "token_ids" in ids else None
    if hasattr(ids, "shape"):
        ids = ids.to_list() if hasattr(ids, "to_list") else np.asarray(ids).tolist()
    if not isinstance(ids, (list, tuple)) or not ids:
        return None
    if is_integer(ids[0]):
        return [[*ids]], True
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in ids]
    holds_ids = all(isinstance(row, (list, tuple)) and all(map(is_integer, row)) for row in rows)
    return ([[*row] for row in rows], False) if holds_ids else None


def list_target_ids(ids: Any) -> list[list[int]] | None:
    """Return the target ids in `decoder_token_ids` as lists without padding, or None if `ids` lacks this key."""
    has_targets = isinstance(ids, Mapping) and "decoder_token_ids" in ids
    return _select_real_tokens(ids, "decoder_") if has_targets else None


def _select_real_tokens(features: Mapping[str, Any], prefix: str) -> list[list[int]]:
    """Return the token ids of each sequence, without padding.

    Args:
        features: dict with `token_ids` and optionally `padding_mask`, each (n, T); `prefix` begins both names.
        prefix: "" or "decoder_".
    """
    ids = keras.ops.convert_to_numpy(features[f"{prefix}token_ids"])  # (n, T)
    mask = keras.ops.convert_to_numpy(features.get(f"{prefix}padding_mask", np.ones_like(ids)))
    return [row[is_real > 0].tolist() for row, is_real in zip(ids, mask, strict=True)]


def list_rows(x: Any, pairs: bool = True) -> list[Any]:
    """Return the examples as a list.

    Args:
        x: examples.
        pairs: whether a tuple holds two columns, lists or tensors of strings, and is returned as a list of pairs; if
            not, each entry of a tuple is an example.
    """
    if pairs and isinstance(x, tuple):
        return [*zip(*map(_get_rows, x), strict=True)]
    return list(_get_rows(x))


def _get_rows(x: Any) -> Iterable[Any]:
    """Convert a tensor of strings to an array, and return anything else unchanged."""
    return x.numpy() if hasattr(x, "numpy") else x


def map_by_output(encode: Callable[[Any, str | None], Any], y: Any) -> Any:
    """Encode each entry of a dict `y` with `encode(labels, output_name)`, and anything else with `encode(y, None)`."""
    if not isinstance(y, Mapping):
        return encode(y, None)
    encoded_labels = {}
    for name, labels in y.items():
        with add_place_to_errors(f"the labels of {name!r}"):
            encoded_labels[name] = encode(labels, name)
    return encoded_labels


def check_not_symbolic(x: Any, task: object) -> None:
    """Check that `x` holds no symbolic strings, such as the inputs of a Functional model.

    Raises:
        TypeError: If `x` holds symbolic strings.
    """
    for column in x if isinstance(x, tuple) else (x,):
        if hasattr(column, "shape") and _is_text_dtype(column) and get_concrete_values(column) is None:
            raise TypeError(
                f"This {type(task).__name__} encodes texts in Python, so it takes no symbolic strings. Build on its "
                "token features, `task.input`; `export` makes a model of strings."
            )


@contextlib.contextmanager
def add_place_to_errors(place: str) -> Iterator[None]:
    """Prefix type and value errors raised in the block with `place`, such as "batch 3 of the dataset"."""
    try:
        yield
    except (TypeError, ValueError) as error:
        error_class = TypeError if isinstance(error, TypeError) else ValueError  # some subclasses take no message
        raise error_class(f"In {place}: {error}") from error


# === Types ===


def _get_leading_spec(x: object) -> Any:
    """Return the spec, or mapping of specs, of a dataset's first component; None for anything else."""
    spec = getattr(x, "element_spec", None)
    while isinstance(spec, tuple):
        spec = spec[0] if spec else None
    return spec


def _get_rank(spec: Any, kind: str, example_shape: str, batch_shape: str) -> int:
    """Return the number of axes of a dataset's component; the other arguments are for the message.

    Raises:
        ValueError: If the number is unknown, as after `tf.py_function`.
    """
    rank: int | None = spec.shape.rank
    if rank is None:
        raise ValueError(
            f"The shape of the dataset's {kind} is unknown. Call `tf.ensure_shape` on them in `map`, with the shape "
            f"{example_shape} for one example or {batch_shape} for a batch."
        )
    return rank


def _is_string(spec: object) -> bool:
    return getattr(getattr(spec, "dtype", None), "name", None) == "string"


def _is_ragged(spec: object) -> bool:
    """Return whether a component of a dataset is ragged, such as texts split into words."""
    return hasattr(spec, "ragged_rank")


def _is_text_dtype(x: object) -> bool:
    """Return whether a numpy, pandas, TensorFlow or Keras array holds strings, or objects that may be strings."""
    dtype = getattr(x, "dtype", None)
    return getattr(dtype, "name", dtype) == "string" or getattr(dtype, "kind", None) in ("U", "S", "O", "T")


def _is_text(x: object) -> TypeGuard[Texts]:
    """Return whether `x` is text, encoded or not, rather than the model's inputs."""
    # This includes a single string, which a later check rejects with advice.
    return isinstance(x, (Encoded, Sequence, ValuesView)) or _is_text_dtype(x)


# === Datasets ===


def _iterate_components(dataset: tf.data.Dataset) -> Iterator[tuple[Any, Any, Any]]:
    """Yield `(texts, labels, weights)` for each batch of a dataset, with ragged tensors as lists."""
    spec = dataset.element_spec
    has_ragged_texts = _is_ragged(_get_leading_spec(dataset))
    has_ragged_labels = isinstance(spec, tuple) and len(spec) > 1 and _is_ragged(spec[1])
    for element in dataset.as_numpy_iterator():
        x, y, weights = keras.utils.unpack_x_y_sample_weight(element)
        # If all rows of a ragged tensor have the same length, it becomes a rectangular array, which would be taken for
        # a dense tensor; a list is not.
        x = keras.tree.map_structure(_convert_to_list, x) if has_ragged_texts else x
        y = _convert_to_list(y) if has_ragged_labels else y
        yield x, y, weights


def _convert_to_list(values: Any) -> list[Any]:
    """Convert a component of a batch, which may be a ragged array, to a list."""
    return values.to_list() if hasattr(values, "to_list") else list(values)


def _check_components(dataset: Any) -> None:
    spec = getattr(dataset, "element_spec", None)
    if isinstance(spec, tuple) and len(spec) > 3:
        raise ValueError(
            f"Expected a dataset of inputs, (inputs, labels) or (inputs, labels, weights), got one of {len(spec)} "
            "components: select what you need with `map`. Pairs of texts are one component, ((first, second), label)."
        )


# === Token features ===


def _check_source(x: Any) -> Any:
    """Check the type of a source of batches, and return it; a generator is replaced by an equivalent iterator.

    Raises:
        TypeError: If `x` cannot be a source of token features.
    """
    if (class_name := type(x).__name__).startswith("Distributed"):
        raise TypeError(
            f"Expected a `tf.data.Dataset`, got a {class_name}: pass the dataset itself, whose batches `fit` "
            "distributes."
        )
    if (columns := column_names(x)) is not None:
        advice = "pass one of them, or what `lmzoo.data.from_table` returns"
        if not hasattr(x, "__len__"):
            advice = "pass what `lmzoo.data.stream` returns"
        raise TypeError(f"Expected texts, got a table with the columns {columns!r:.80}: {advice}.")
    is_collection = hasattr(x, "__getitem__") or (isinstance(x, Iterable) and not isinstance(x, Iterator))
    if not (is_collection or isinstance(x, Generator)):
        raise TypeError(f"Expected a list of texts, a dataset, or a dict of token features; got {x!r:.60}.")
    if hasattr(x, "shape"):
        raise TypeError(f"Expected texts, or a dict of token features, got an array of {x.dtype}.")
    spec = _get_leading_spec(x)
    if isinstance(spec, Mapping) and any(map(_is_string, spec.values())):
        names = [*spec]
        raise TypeError(
            f"Expected a dataset of texts, or of tuples that begin with them, got one of records of {names!r:.80}: "
            f"`lmzoo.data.stream` reads them, or select what you need with `map`, as in `dataset.map(lambda row: "
            f"(row[{names[0]!r}], ...))`."
        )
    if isinstance(x, (set, frozenset)):
        raise TypeError("Expected a list of texts, got a set, which has no order.")
    return _check_generator(x) if isinstance(x, Generator) else x


def _check_generator(x: Generator[Any, None, None]) -> Iterator[Any]:
    """Check that a generator's first batch is not text, and return an iterator over all batches."""
    first_batches = [*itertools.islice(x, 1)]
    for batch in first_batches:
        if isinstance(batch[0] if isinstance(batch, (tuple, list)) and batch else batch, (str, bytes)):
            raise TypeError("Expected a list of texts, got a generator of them: pass `list(texts)`.")
    return (batch for batches in (first_batches, x) for batch in batches)


def _check_row_count(row_count: int, group_size: int) -> None:
    """Check that token features consist of whole examples, each of `group_size` rows.

    Raises:
        ValueError: If there are rows that belong to no whole example.
    """
    if row_count % group_size:
        raise ValueError(
            f"Token features must have {group_size} rows for each example, but {row_count} is not a multiple of "
            f"{group_size}. Add the missing rows, or leave out the incomplete example."
        )


def _check_token_weights(task: Encoder, sample_weight: Any, y: Any) -> Any:
    """Check the weights of token features and return them as arrays, repeated for each token if labels are per token.

    Raises:
        ValueError: If the weights have the wrong shape, or a weight is NaN, infinite or negative.
    """
    if isinstance(sample_weight, dict):  # weights by output
        return keras.tree.map_structure(as_weights, sample_weight)
    if not task.labels_tokens or y is None:
        return as_weights(sample_weight)
    weights = as_weights(sample_weight)
    if weights is None:
        return None
    if weights.shape not in (y.shape, y.shape[:1]):
        raise ValueError(
            f"Expected a weight for each text, of shape ({len(y)},), or for each token, {y.shape}; got weights of "
            f"shape {weights.shape}."
        )
    return weights if weights.ndim == 2 else np.repeat(weights[:, None], y.shape[1], axis=1)


def _check_dataset_weights(x: Any) -> Any:
    """Add a check of the weights to a dataset of (features, labels, weights), and return anything else unchanged.

    The check runs during iteration and raises an error for weights that are negative, infinite or NaN.

    Raises:
        ValueError: If a dataset has more than three components.
    """
    _check_components(x)
    if not (hasattr(x, "enumerate") and isinstance(x.element_spec, tuple) and len(x.element_spec) == 3):
        return x
    import tensorflow as tf

    def check(batch_index: tf.Tensor, element: tuple[Any, ...]) -> tuple[Any, ...]:
        message = tf.strings.format(
            "In batch {} of the dataset: weights must be finite and at least 0, got", batch_index
        )
        for weights in tf.nest.flatten(element[2]):
            is_valid = tf.math.is_finite(tf.cast(weights, "float32")) & (weights >= 0)
            tf.debugging.Assert(tf.reduce_all(is_valid), [message, weights])
        return element

    return x.enumerate().map(check)
