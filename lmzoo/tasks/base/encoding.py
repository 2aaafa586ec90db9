"""What the examples of a task are: how they are encoded, and what a batch holds."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import keras
import numpy as np

from lmzoo.common.tensor_types import Features
from lmzoo.families.backbone import Backbone
from lmzoo.families.named_inputs import NamedInputsModel
from lmzoo.tasks.base.arguments import KnownArguments
from lmzoo.tasks.base.examples import (
    Batch,
    EncodedInputs,
    Examples,
    FeatureArrays,
    Inputs,
    Labels,
    Texts,
    Weights,
    as_array,
    example_weights,
)
from lmzoo.tasks.base.labels import encode_classes
from lmzoo.tasks.base.preprocessor_checks import check_preprocessor
from lmzoo.tasks.base.word_weights import weigh_classes, weigh_labels
from lmzoo.tasks.inputs import TextsInMemory, check_not_symbolic, read_inputs
from lmzoo.text import Encoded, Preprocessor
from lmzoo.text.segments import split_segments


class EncodingTask(KnownArguments, NamedInputsModel):
    """The part of `lmzoo.models.Task` that encodes examples and makes batches of them; subclasses override it."""

    backbone: Backbone
    preprocessor: Preprocessor | None
    labels: tuple[str, ...] | None
    num_classes: int
    multi_label: bool

    learns_from: str = ""  # what `fit` takes if it takes no labels, for messages: "texts alone"
    independent_rows: bool = True  # whether the sequences of token features may be shuffled
    splits_examples: ClassVar[bool] = False  # whether an example may become any number of sequences
    per_token: bool = False  # whether the outputs' second axis is that of the tokens

    @property
    def needs_labels(self) -> bool:
        """Whether `fit` takes labels, and needs them."""
        return not self.learns_from

    @property
    def labels_words(self) -> bool:
        """Whether an example has a label for each of its words."""
        return self.per_token and self.num_classes > 0

    @property
    def text_preprocessor(self) -> Preprocessor:
        """The preprocessor of a task that has one.

        Raises:
            ValueError: if there is none.
        """
        if self.preprocessor is None:
            raise ValueError(
                f"This {type(self).__name__} has no preprocessor, so it takes token features (a dict of arrays), not "
                "text. Pass `preprocessor=` when building it, or load it with `from_preset`."
            )
        return self.preprocessor

    @property
    def longest_sequence(self) -> int:
        """The most tokens of a sequence that text becomes, as `encode_examples` returns it."""
        return int(self.text_preprocessor.sequence_length)

    def summary(
        self,
        line_length: int | None = None,
        positions: list[float] | None = None,
        print_fn: Callable[[str], object] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print the preprocessor's tokenizer and the model's layers; see `keras.Model.summary`.

        Args:
            line_length: int, width of the lines.
            positions: ends of the columns, as in Keras.
            print_fn: called with each part of the text instead of `print`.
            **kwargs: of `keras.Model.summary`, such as `expand_nested`.
        """
        if self.preprocessor is not None:
            tokenizer = self.preprocessor.tokenizer
            (print_fn or print)(
                f"Preprocessor: {type(tokenizer).__name__}, vocabulary size {tokenizer.vocabulary_size:,}, sequences "
                f"of at most {self.preprocessor.sequence_length:,} tokens"
            )
        super().summary(line_length, positions, print_fn, **kwargs)

    def encode_inputs(self, x: Texts) -> EncodedInputs:
        """Texts or pairs as packed sequences of token ids, or another kind of `lmzoo.text.Encoded`.

        Encoded texts are returned as they are.

        Raises:
            TypeError: naming the position of an entry that is not text.
            ValueError: without a preprocessor.
        """
        self.check_takes_text()
        if isinstance(x, Encoded):
            return x
        preprocessor = self.text_preprocessor
        return preprocessor.encode(*split_segments(x, preprocessor.tokenizer.takes_words))

    def check_takes_text(self) -> None:
        """Checks that there is a preprocessor whose sequences fit the model.

        Raises:
            ValueError: if not.
        """
        check_preprocessor(self.backbone, self.text_preprocessor)  # again, since `sequence_length` can be set

    def encode_examples(self, x: Texts, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """The texts, labels and weights that `fit` got, encoded, and checked to be equally many.

        Raises:
            TypeError: naming the position of an entry that is not text.
            ValueError: for labels that are missing, too few, or unknown to the model.
        """
        self.check_unlabelled(y)
        examples = Examples(self.encode_inputs(x), self.encode_labels(y), example_weights(sample_weight))
        self.check_counts(len(examples.encoded), examples.labels, examples.weights)
        return examples

    def check_unlabelled(self, y: Labels | None) -> None:
        """Checks that a task that takes no labels gets none.

        Raises:
            ValueError: if there are.
        """
        if y is not None and not self.needs_labels:
            raise ValueError(
                f"{type(self).__name__} learns from {self.learns_from}: it takes no labels (`y`). "
                "Pairs alone, in a `tf.data.Dataset` or as `validation_data`, are ((firsts, seconds),)."
            )

    def check_counts(self, count: int, y: Any, sample_weight: Any) -> None:
        """Checks that there are `count` labels, if the task needs them, and `count` weights, if any.

        Raises:
            ValueError: if not.
        """
        if y is None and self.needs_labels:
            raise ValueError(f"{type(self).__name__} needs a label for each text: pass `y`.")
        for what, values in (("labels", y), ("weights", sample_weight)):
            if values is not None and len(values) != count:
                raise ValueError(f"Got {count} texts but {len(values)} {what}.")

    def encode_labels(self, y: Labels | None) -> Any:
        """Labels as the array that the loss takes, each of them checked; None stays None."""
        return as_array(y)

    def encode_class_weight(self, class_weight: Mapping[Any, float]) -> dict[int, float]:
        """Weights of all classes by number, 1 for classes that are not given.

        Raises:
            TypeError: if it is not a dict.
            ValueError: if examples do not have exactly one class; for a class that the model does not have; for a
                weight that is NaN, infinite or negative.
        """
        if not self.num_classes or (self.multi_label and not self.labels_words):
            raise ValueError(
                f"`class_weight` needs exactly one class per text, which {type(self).__name__} does not have: pass "
                "`sample_weight`."
            )
        if not isinstance(class_weight, dict):
            raise TypeError(f"`class_weight` must be a dict from classes to weights, got {class_weight!r:.60}.")
        weights = dict.fromkeys(range(self.num_classes), 1.0)  # TensorFlow's datasets need all of them
        for name, weight in class_weight.items():
            try:
                number = int(encode_classes([name], self.num_classes, self.labels)[0])
            except ValueError as error:
                raise ValueError(f"In `class_weight`: {error}") from None
            if not (isinstance(weight, numbers.Real) and 0 <= float(weight) < math.inf):
                raise ValueError(
                    f"In `class_weight`: the weight of {name!r} must be a finite number of at least 0, got "
                    f"{weight!r:.60}."
                )
            weights[number] = float(weight)
        return weights

    # === Single batches ===

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model on token features or, outside of graphs, on texts."""
        return super().__call__(self._as_features(inputs), *args, **kwargs)

    def train_on_batch(
        self,
        x: Inputs,
        y: Labels | None = None,
        sample_weight: Weights | None = None,
        class_weight: Mapping[Any, float] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Train on one batch of texts or token features; see `keras.Model.train_on_batch`."""
        if class_weight is not None:
            class_weight = self.encode_class_weight(class_weight)
        step = int(keras.ops.convert_to_numpy(self.optimizer.iterations))
        of_words = class_weight if self.labels_words else None  # Keras' class weights are those of examples
        batch = self._as_batch(x, y, sample_weight, step, of_words)
        return super().train_on_batch(*batch, None if self.labels_words else class_weight, **kwargs)

    def test_on_batch(
        self, x: Inputs, y: Labels | None = None, sample_weight: Weights | None = None, **kwargs: Any
    ) -> Any:
        """Evaluate one batch of texts or token features; see `keras.Model.test_on_batch`."""
        return super().test_on_batch(*self._as_batch(x, y, sample_weight), **kwargs)

    def predict_on_batch(self, x: Inputs) -> Any:
        """Return the outputs for one batch of texts or token features, padded to the longest."""
        return super().predict_on_batch(self._as_features(x))

    def _as_features(self, x: Any) -> Any:
        """Return texts as the model's inputs, and anything else unchanged."""
        check_not_symbolic(x, self)
        if not isinstance(read_inputs(x), TextsInMemory):
            return x
        encoded = self.encode_inputs(x)
        features = self.features(encoded, np.arange(len(encoded)), int(encoded.lengths.max(initial=1)))
        return {**features, **self.extra_features(encoded)}

    def _as_batch(
        self,
        x: Any,
        y: Labels | None,
        sample_weight: Weights | None,
        step: int = 0,
        class_weight: Mapping[int, float] | None = None,
    ) -> tuple[Any, Labels | None, Weights | None]:
        """Return `(x, y, sample_weight)` for Keras, with texts as features; `step` seeds everything random.

        `class_weight` weighs words by their classes.
        """
        if not isinstance(read_inputs(x), TextsInMemory):
            weights = sample_weight if class_weight is None else weigh_labels(x, y, sample_weight, class_weight)
            return x, y, weights
        examples = self.encode_examples(x, y, sample_weight)
        if class_weight is not None:
            examples = weigh_classes(examples, class_weight)
        lengths = examples.encoded.lengths
        rng = np.random.default_rng((0, step))
        batch = self.make_batch(examples, np.arange(len(lengths)), int(lengths.max(initial=1)), rng)
        features, targets, weights, *_ = (*batch, None, None)
        return features, targets, weights

    # === Batches of examples ===

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """A batch to train on or to evaluate: the examples at `indices` (b,), padded to `width`.

        `rng` is for everything random.

        Returns:
            `(features,)`, `(features, y)` or `(features, y, sample_weight)`.
        """
        arrays = [a[indices] for a in examples[1:] if a is not None]
        return (self.features(examples.encoded, indices, width), *arrays)

    def features(self, encoded: EncodedInputs, indices: np.ndarray, width: int) -> FeatureArrays:
        """The model's inputs for some examples, padded to `width`; see `Preprocessor.features`."""
        return self.text_preprocessor.features(encoded, indices, width)

    def backbone_inputs(self, features: Features) -> Features:
        """The token features that the backbone gets, to be checked; by default all but the task's own inputs."""
        own = self.input.keys() - self.backbone.input.keys()
        return {name: values for name, values in features.items() if name not in own}

    def extra_features(self, encoded: EncodedInputs) -> FeatureArrays:
        """Inputs that predictions need in addition to the backbone's: arrays with one row per example."""
        return {}
