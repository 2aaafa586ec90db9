"""Base class of tasks: Keras models that take strings."""

from __future__ import annotations

import math
import numbers
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

import keras
import numpy as np

from lmzoo.common.arguments import as_python_values, refuse_arguments
from lmzoo.common.other_names import SAVE_TO_PRESET
from lmzoo.common.tensor_types import Features, Tensor, Tensors
from lmzoo.evaluation.reports import Report
from lmzoo.families.backbone import Backbone
from lmzoo.families.named_inputs import NamedInputsModel
from lmzoo.families.resizing import copy_weights
from lmzoo.layers.adapted import stores_updates
from lmzoo.layers.configured import list_constructor_arguments
from lmzoo.layers.finite import ReportsNotFinite
from lmzoo.layers.sublayers import get_stored_weights, is_quantized, sublayers
from lmzoo.presets.catalog import PresetsOfClass
from lmzoo.presets.keras_files import load_keras_file
from lmzoo.presets.keras_preset import save_preset
from lmzoo.presets.loading import load_task
from lmzoo.registry.family import Family, get_family
from lmzoo.registry.head_kinds import HasHead
from lmzoo.serving.export import export_task, text_signatures
from lmzoo.serving.served_model import Signatures
from lmzoo.tasks.base.arguments import KnownArguments, check_arguments, list_callbacks
from lmzoo.tasks.base.examples import (
    Batch,
    BatchOptions,
    EncodedInputs,
    Examples,
    FeatureArrays,
    Inputs,
    Labels,
    Texts,
    TrainingData,
    Weights,
    as_array,
    as_example_weights,
)
from lmzoo.tasks.base.keras_hub_names import KerasHubTaskNames, check_compile_arguments
from lmzoo.tasks.base.labels import encode_classes
from lmzoo.tasks.base.prediction import predict, predict_encoded, suppress_retracing_warnings
from lmzoo.tasks.base.preprocessor_checks import check_preprocessor, fit_preprocessor
from lmzoo.tasks.base.reports import add_optional_tables, check_optional_tables
from lmzoo.tasks.inputs import (
    StreamedExamples,
    TaskInputs,
    TextsInMemory,
    TokenFeatures,
    add_place_to_errors,
    check_not_symbolic,
    read_inputs,
    read_validation_data,
)
from lmzoo.tasks.word_weights import weigh_classes, weigh_generator
from lmzoo.text import Encoded, EncodedTexts, Preprocessor
from lmzoo.text.batching import Batches
from lmzoo.text.keras_input import keras_input
from lmzoo.text.long_texts import Windows
from lmzoo.text.segments import split_segments
from lmzoo.training.compiled_functions import NO_OPTIMIZER, FollowsWeights
from lmzoo.training.distillation import ComparedOutputs, DistillationSettings
from lmzoo.training.fine_tuning import FineTuningRecipe, make_default_recipe
from lmzoo.training.losses import match_loss
from lmzoo.training.metrics import merge_metrics
from lmzoo.training.optimizers import AdamW
from lmzoo.training.training_run import TrainingRun, find_checkpoint, prepare_step

if TYPE_CHECKING:
    import tensorflow as tf

# A loss that `keras.Model.compile` takes, or a dict from outputs to losses.
Losses: TypeAlias = Any
# Metrics that `keras.Model.compile` takes: a list, or a dict from outputs to lists.
Metrics: TypeAlias = list[Any] | dict[str, Any]


class Task(HasHead, KnownArguments, KerasHubTaskNames, FollowsWeights, NamedInputsModel, ReportsNotFinite):
    """Base class of tasks: Functional models of a backbone and a head, with a preprocessor for text.

    `fit`, `evaluate` and `predict` take raw text (a list or array of strings, pairs as a tuple of two lists or a list
    of 2-tuples), a `tf.data.Dataset` of strings, or dicts of token features. `fit` and `evaluate` also take a
    `lmzoo.data.stream`. Lists and arrays of text are tokenized once and batched by length; datasets and streams are
    tokenized as they are read.

    A subclass builds the head in its constructor, which ends with `self.compile()`, and overrides these defaults where
    needed:

    * training: `default_loss`, `default_metrics` and `default_optimizer`; `uses_pooler` or `unused_variables`, for
      weights that get no gradient from its loss;
    * examples: `encode_labels`; for inputs other than texts and pairs also `encode_inputs`, `encode_examples`,
      `features` and `make_batch`; `learns_from` if there are no labels; `batches` and `split_validation` if batches
      are not made of independent examples;
    * outputs: `per_token`, `independent_rows`, `outputs_logits`;
    * the command line: `commands`, `input_names`, `arguments_for`;
    * answers: a method of its own, such as `classify`, with the alias `answers`; `check_answerable` if it refuses some
      examples; `serve`, `served_outputs` and, for strings other than `text` and `text_pair`, `signatures`.

    Args:
        backbone: `lmzoo.models.Backbone`, the layers below the head.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        inputs: dict of the model's symbolic inputs.
        outputs: symbolic outputs of the model.
        labels: names of the classes, or None.
        name: name of the model; by default the class name in snake case, with a number if that name is taken.
        reads_pairs: whether the layers on top of the backbone take `segment_ids` and so need pairs of texts.

    Example: see `lmzoo.models.TextClassifier`.
    """

    backbone: Backbone
    preprocessor: Preprocessor | None
    reads_pairs: bool
    windows: Windows = None  # for subclasses of `LongTextTask`
    stride: int | None = None
    default_name: str | None  # the name generated by Keras, or None if a name was passed

    presets = PresetsOfClass()
    learns_from: str = ""  # training data of a task without labels, for messages: "texts alone"
    independent_rows: bool = True  # whether the sequences of token features may be shuffled
    splits_examples: bool = False  # whether an example may become several sequences, or none
    decodes_masks: bool = False  # whether the head uses the backbone's decoder for masked tokens, if it has one
    per_token: bool = False  # whether the second axis of the outputs is the token axis
    labels_tokens: bool = False  # whether the labels of token features are one for each token, int (n, T)
    outputs_logits: bool = True  # whether the outputs are logits, not probabilities

    distillation: ClassVar[DistillationSettings | None] = None  # None if the task cannot be distilled

    served_outputs: ClassVar[tuple[str, ...]] = ()
    output_name: ClassVar[str] = "logits"  # name of the output of `predict` in files for other runtimes
    predicts: ClassVar[str] = ""  # output of `predict`, with its shape, for the tables of tasks in the docs
    # Inputs and outputs of the exported model, for the same tables.
    takes: ClassVar[str] = "`text` (n,)"
    serves: ClassVar[str] = ""
    # Pairs of a command-line name and the kind of examples it reads; see `lmzoo_cli.task_kinds`.
    commands: ClassVar[tuple[tuple[str, str], ...]] = ()
    input_names: ClassVar[tuple[str, ...]] = ("text", "text_pair")  # names of an input's parts in prediction files

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None,
        inputs: Features,
        outputs: Tensors,
        labels: Sequence[str] | None = None,
        name: str | None = None,
        reads_pairs: bool = False,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.default_name = self.name if name is None else None
        if backbone.reads_source and not self.supports(get_family(backbone)):
            raise ValueError(
                f"This {type(backbone).__name__} writes one sequence from another: it is for a Seq2SeqLM, not for a "
                f"{type(self).__name__}."
            )
        self.backbone = backbone
        self.reads_pairs = reads_pairs
        self.preprocessor = None if preprocessor is None else fit_preprocessor(backbone, preprocessor, reads_pairs)
        self.labels = None if labels is None else tuple(labels)
        self.dtype_policy = backbone.dtype_policy

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the task supports a family's backbones; by default, whether they read no source sequence."""
        return not family.backbone.reads_source

    @classmethod
    def arguments_for(cls, y: Any) -> dict[str, Any]:
        """Return constructor arguments that suit the labels `y`, for the command line; by default, none."""
        return {}

    @property
    def family(self) -> Family:
        """The backbone's family."""
        return get_family(self.backbone)

    @property
    def needs_labels(self) -> bool:
        """Whether `fit` requires labels; if not, it takes none."""
        return not self.learns_from

    @property
    def labels_words(self) -> bool:
        """Whether each word of an example has a label."""
        return self.per_token and self.num_classes > 0

    @property
    def text_preprocessor(self) -> Preprocessor:
        """The task's preprocessor, never None.

        Raises:
            ValueError: If the task has no preprocessor.
        """
        if self.preprocessor is None:
            raise ValueError(
                f"This {type(self).__name__} has no preprocessor, so it takes token features (a dict of arrays), not "
                "text. Pass `preprocessor=` when building it, or load it with `from_preset`."
            )
        return self.preprocessor

    @property
    def longest_sequence(self) -> int:
        """The maximum number of tokens in a sequence that `encode_examples` returns."""
        return int(self.text_preprocessor.sequence_length)

    @property
    def served_length(self) -> int:
        """The maximum number of tokens in an input of the exported model, or 0 without a preprocessor."""
        return self.preprocessor.sequence_length if self.preprocessor else 0

    def summary(
        self,
        line_length: int | None = None,
        positions: list[float] | None = None,
        print_fn: Callable[[str], object] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print the preprocessor's tokenizer and the model's layers; see `keras.Model.summary`.

        Args:
            line_length: int, width of the lines in characters.
            positions: floats, ends of the columns, as in Keras.
            print_fn: function that is called with each part of the text instead of `print`.
            **kwargs: further arguments of `keras.Model.summary`, such as `expand_nested`.
        """
        if self.preprocessor is not None:
            tokenizer = self.preprocessor.tokenizer
            (print_fn or print)(
                f"Preprocessor: {type(tokenizer).__name__}, vocabulary size {tokenizer.vocabulary_size:,}, sequences "
                f"of at most {self.preprocessor.sequence_length:,} tokens"
            )
        super().summary(line_length, positions, print_fn, **kwargs)

    # === Compile ===

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        """Return the optimizer that `compile` uses for `optimizer="auto"`."""
        return AdamW(self.recipe.learning_rate, global_clipnorm=1.0)

    @property
    def recipe(self) -> FineTuningRecipe:
        """The fine-tuning recipe that the backbone recommends for this kind of head, or the default recipe."""
        recommended_recipe = self.backbone.fine_tuning.get(self.head_kind) or self.backbone.usual_recipes.get(
            self.head_kind
        )
        return recommended_recipe or make_default_recipe(
            self.backbone.config.hidden_dim, self.backbone.learning_rate_factor
        )

    def default_loss(self) -> Losses:
        """Return the loss that `compile` uses for `loss="auto"`."""
        raise NotImplementedError(f"{type(self).__name__} must define `default_loss`.")

    def default_loss_weights(self) -> dict[str, float] | None:
        """Return the weight of each output's loss for `loss="auto"`, or None for equal weights."""
        return None

    def default_metrics(self) -> Metrics:
        """Return the metrics that `compile` uses for `metrics="auto"`: a list, or a dict of lists by output."""
        return []

    # Keras would warn in every `fit` about trainable weights that get no gradient from the loss.
    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The trainable variables, without `unused_variables`."""
        return self._split_unused(super().trainable_variables)[0]

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        """The non-trainable variables, including `unused_variables`."""
        return super().non_trainable_variables + self._split_unused(super().trainable_variables)[1]

    trainable_weights = trainable_variables

    @property
    def non_trainable_weights(self) -> list[keras.Variable]:
        """The non-trainable weights, including `unused_variables`, but without the states of seeds and metrics."""
        return super().non_trainable_weights + self._split_unused(super().trainable_weights)[1]

    def _split_unused(self, variables: list[keras.Variable]) -> tuple[list[keras.Variable], list[keras.Variable]]:
        """Split `variables` into the variables that the loss trains and `unused_variables`."""
        unused_ids = {id(v) for v in self.unused_variables}
        return [v for v in variables if id(v) not in unused_ids], [v for v in variables if id(v) in unused_ids]

    @property
    def unused_variables(self) -> list[keras.Variable]:
        """The variables that get no gradient from the task's loss, such as the weights of an unused pooler."""
        pooler = None if self.uses_pooler else self.backbone.pooler
        pooler_variables = [] if pooler is None else pooler.variables
        return pooler_variables + ([] if self.decodes_masks else self.backbone.mask_decoder_variables)

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer = "auto",
        loss: Losses = "auto",
        metrics: Metrics | Literal["auto"] | None = "auto",
        weighted_metrics: Metrics | None = None,
        **kwargs: Any,
    ) -> None:
        """Configure the model for training, with the task's own default for each `"auto"`.

        The default optimizer is `lmzoo.training.AdamW` with gradients clipped to norm 1. Its learning rate warms up
        over the first tenth of a `fit`, and then decays linearly to the end. Its peak comes from `recipe`: the preset's
        value for this kind of head or, if the preset recommends none, 5e-5 · 768 / H for hidden states of width H. For
        a width of 768, this is the value of Devlin et al. (2019); for narrower models it is higher.

        Args:
            optimizer: `"auto"` or a Keras optimizer.
            loss: `"auto"` or a Keras loss. The model's outputs are logits, so a cross-entropy that is passed as a
                name or a function, such as `"sparse_categorical_crossentropy"`, is computed from logits. The outputs of
                a `TextRegressor` with a sigmoid are probabilities.
            metrics: `"auto"` or a list of Keras metrics, which are weighted by the examples' weights. For a task with
                several outputs, `loss` is a dict and `metrics` a dict of lists.
            weighted_metrics: additional metrics, in the same form.
            **kwargs: further arguments of `keras.Model.compile`, such as `jit_compile`.

        Raises:
            TypeError: If metrics are neither a list nor a dict of lists, or an argument is unknown.
            ValueError: If a cross-entropy takes probabilities but the outputs are logits, or the reverse; or if the
                name of a loss is unknown.
        """
        check_compile_arguments(kwargs)
        if isinstance(optimizer, str) and optimizer == "auto":
            optimizer = self.default_optimizer()
        if isinstance(loss, str) and loss == "auto":
            loss = self.default_loss()
            kwargs.setdefault("loss_weights", self.default_loss_weights())
        if isinstance(metrics, str) and metrics == "auto":
            metrics = self.default_metrics()
        weighted_metrics = merge_metrics(metrics, weighted_metrics)
        super().compile(
            optimizer=optimizer, loss=match_loss(loss, self.outputs_logits), weighted_metrics=weighted_metrics, **kwargs
        )

    def quantize(self, mode: str = "int8", **kwargs: Any) -> None:
        """Quantize the backbone's weights for storage and prediction, leaving the head unchanged.

        A compiled task is compiled again, with a new optimizer of the same configuration.

        Args:
            mode: quantization mode, as in `keras.Model.quantize`.
            **kwargs: further arguments of `keras.Model.quantize`.
        """
        with warnings.catch_warnings():
            # Dropout and other layers without weights have nothing to quantize.
            warnings.filterwarnings("ignore", "Layer .* does not have a `quantize`")
            self.backbone.quantize(mode, **kwargs)
        self.compile_again()  # the optimizer holds the old weights

    # === Examples, for subclasses to define ===

    def encode_inputs(self, x: Texts) -> EncodedInputs:
        """Encode texts or pairs as packed sequences of token ids.

        Subclasses may return another kind of `lmzoo.text.Encoded`. Encoded texts are returned unchanged.

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If the task has no preprocessor, or its sequences do not fit the model.
        """
        self.check_takes_text()
        if isinstance(x, Encoded):
            return x
        return self.text_preprocessor.encode(*self.split_texts(x))

    def split_texts(self, x: Texts) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """Return the first and second texts of pairs, or single texts and None; see `lmzoo.text.segments`."""
        return split_segments(x, self.text_preprocessor.tokenizer.takes_words)

    def check_takes_text(self) -> None:
        """Check that the task has a preprocessor whose sequences fit the model.

        Raises:
            ValueError: If the task has no preprocessor, or if the sequences do not fit.
        """
        # The constructor checks this too, but `sequence_length` may have been changed since.
        check_preprocessor(self.backbone, self.text_preprocessor)

    def encode_examples(self, x: Texts, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """Encode texts, labels and weights, and check that there are equally many of each.

        Raises:
            TypeError: If an entry is not text; the message names its position.
            ValueError: If labels are missing, or passed to a task that takes none; if the numbers of texts, labels and
                weights differ; or if a label is not among the model's classes.
        """
        self.check_unlabeled(y)
        return self._add_labels(self.encode_inputs(x), y, sample_weight)

    def encode_part(self, x: Texts, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """Encode a part of the examples, such as a buffer of a stream, without checks that need all examples.

        By default, it calls `encode_examples`.
        """
        return self.encode_examples(x, y, sample_weight)

    def _add_labels(self, encoded: EncodedInputs, y: Labels | None, sample_weight: Weights | None) -> Examples:
        """Combine encoded examples with their labels and weights, and check that there are equally many of each."""
        examples = Examples(encoded, self.encode_labels(y), as_example_weights(sample_weight))
        self.check_counts(len(encoded), examples.labels, examples.weights)
        return examples

    def _pack_documents(
        self, x: Any, y: Labels | None, sample_weight: Weights | None, pack: Callable[[Any, Preprocessor], EncodedTexts]
    ) -> Examples:
        """Pack texts or documents into training sequences with `pack`.

        A sequence may hold parts of several documents. Encoded sequences are returned unchanged.

        Raises:
            ValueError: If labels are passed, or if weights are passed for documents that are not encoded.
        """
        self.check_takes_text()
        self.check_unlabeled(y)
        if not isinstance(x, EncodedTexts):
            if sample_weight is not None:
                raise ValueError(
                    "A document has no weight, since its sequences hold parts of others: make sequences with "
                    "`lmzoo.data.corpora`, and pass them with a weight for each."
                )
            x = pack(x, self.text_preprocessor)
        return self._add_labels(x, None, sample_weight)

    def check_unlabeled(self, y: Labels | None) -> None:
        """Check that no labels are passed to a task that takes none.

        Raises:
            ValueError: If the task takes no labels and `y` is not None.
        """
        if y is not None and not self.needs_labels:
            raise ValueError(
                f"{type(self).__name__} learns from {self.learns_from}: it takes no labels (`y`). "
                "Pairs alone, in a `tf.data.Dataset` or as `validation_data`, are ((firsts, seconds),)."
            )

    def check_counts(self, count: int, y: Any, sample_weight: Any) -> None:
        """Check that there are `count` labels, if the task needs labels, and `count` weights, if any.

        Raises:
            ValueError: If labels are missing, or if there are not `count` labels or weights.
        """
        if y is None and self.needs_labels:
            raise ValueError(f"{type(self).__name__} needs a label for each text: pass `y`.")
        for kind, values in (("labels", y), ("weights", sample_weight)):
            if values is not None and len(values) != count:
                raise ValueError(f"Got {count} texts but {len(values)} {kind}.")

    def encode_labels(self, y: Labels | None) -> Any:
        """Check labels and return them as the array that the loss takes, or None if `y` is None."""
        return as_array(y)

    def encode_feature_labels(self, features: Features, y: Labels | None) -> Any:
        """Check the labels of token features, and return them in the form that `encode_labels` returns."""
        return self.encode_labels(y)

    def count_rows_per_example(self, y: Any) -> int:
        """Return the number of rows of token features that form an example, given the encoded labels `y`."""
        return 1

    def encode_class_weight(self, class_weight: Mapping[Any, float]) -> dict[int, float]:
        """Return a dict from each class number to its weight, which is 1 for classes not in `class_weight`.

        Raises:
            TypeError: If `class_weight` is not a dict.
            ValueError: If the task's examples do not have exactly one class each, if the model lacks a class in
                `class_weight`, or if a weight is NaN, infinite or negative.
        """
        if not self.num_classes or (self.multi_label and not self.labels_words):
            raise ValueError(
                f"`class_weight` needs exactly one class per text, which {type(self).__name__} does not have: pass "
                "`sample_weight`."
            )
        if not isinstance(class_weight, dict):
            raise TypeError(f"`class_weight` must be a dict from classes to weights, got {class_weight!r:.60}.")
        weights = dict.fromkeys(range(self.num_classes), 1.0)  # TensorFlow's datasets need a weight for every class
        with add_place_to_errors("`class_weight`"):
            for label, weight in class_weight.items():
                class_number = int(encode_classes([label], self.num_classes, self.labels)[0])
                if not (isinstance(weight, numbers.Real) and 0 <= float(weight) < math.inf):
                    raise ValueError(
                        f"the weight of {label!r} must be a finite number of at least 0, got {weight!r:.60}."
                    )
                weights[class_number] = float(weight)
        return weights

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Return the examples at `indices` as one batch for training or evaluation, padded to `width` tokens.

        All random choices are drawn from `rng`.

        Returns:
            `(features,)`, `(features, y)` or `(features, y, sample_weight)`.
        """
        arrays = [array[indices] for array in examples[1:] if array is not None]
        return (self.features(examples.encoded, indices, width), *arrays)

    def features(self, encoded: EncodedInputs, indices: np.ndarray, width: int) -> FeatureArrays:
        """Return the model's inputs for the examples at `indices`, padded to `width`."""
        return self.text_preprocessor.features(encoded, indices, width)

    def backbone_inputs(self, features: Features) -> Features:
        """Return the features that the backbone takes; by default, all except the task's own inputs."""
        task_inputs = self.input.keys() - self.backbone.input.keys()
        return {name: values for name, values in features.items() if name not in task_inputs}

    def extra_features(self, encoded: EncodedInputs) -> FeatureArrays:
        """Return the inputs that predictions need besides `features`, with a row for each example; by default, none."""
        return {}

    def batches(self, inputs: TaskInputs, options: BatchOptions) -> TrainingData:
        """Return the data of `fit` and `evaluate` as `(x, y, sample_weight)` for Keras.

        By default, examples of similar length are batched together, and the batches include labels and weights.
        """
        return inputs.batches(self, options)

    def split_validation(self, inputs: TaskInputs, fraction: float) -> tuple[TaskInputs, TaskInputs]:
        """Hold out the last `fraction` of the examples, and return `(training, validation)`.

        Raises:
            ValueError: If one of the sets would be empty, or if the examples are not in memory.
        """
        return inputs.split(self, fraction)

    # === Fit ===

    def fit(
        self,
        x: Inputs | None = None,
        y: Labels | None = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: bool | int | str = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Inputs | TrainingData | None = None,
        shuffle: bool = True,
        class_weight: Mapping[Any, float] | None = None,
        sample_weight: Weights | None = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Train the model on texts, a dataset, a stream or token features; see `keras.Model.fit`.

        Args:
            x: texts, a `tf.data.Dataset` of texts with labels, or token features. `lmzoo.data.from_table` reads texts
                and labels from a table, and `lmzoo.data.stream` reads them row by row if they do not fit in memory.
            y: labels: integers, or strings if the task has `labels`.
            batch_size: int, by default 32 (`BidirectionalLM`: 128).
            epochs: int, number of epochs, including the epochs before `initial_epoch`.
            verbose: verbosity, as in Keras.
            callbacks: Keras callbacks.
            validation_split: float, fraction of the examples to hold out, taken from the end.
            validation_data: `(x, y)` or `(x, y, sample_weight)`, a dataset, or a stream; `x` alone for a task without
                labels.
            shuffle: whether to shuffle the examples in each epoch; False keeps the given order.
            class_weight: dict from each class, by number or by name, to its weight, which multiplies `sample_weight`.
            sample_weight: weights of the examples, float (n,); for `TokenClassifier` also lists of word weights, one
                list for each text.
            initial_epoch: int, epoch to start at, counted from 0.
            steps_per_epoch: int, batches per epoch; all by default. Required for a stream of unknown length. Each
                epoch continues where the previous one ended, and starts over after the last example.
            seed: int, seed for shuffling and masking.
            **kwargs: further arguments of `keras.Model.fit`.

        Returns:
            Keras' history of losses and metrics.

        Raises:
            TypeError: If an entry is not text (the message names its position), or `callbacks` are not Keras callbacks.
            ProcessesError: If other processes that train the model have different data, or one of them has ended.
            ValueError: Before the first step, if a label is not a class of the model, a weight is NaN, infinite or
                negative, or a number such as `batch_size` is too small or not an integer.
            NotFiniteError: If training diverges; see `StopOnDivergence`.
        """
        check_arguments(
            batch_size=batch_size,
            epochs=epochs,
            callbacks=callbacks,
            validation_split=validation_split,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            seed=seed,
            **kwargs,
        )
        if self.optimizer is None:
            raise ValueError(NO_OPTIMIZER)
        inputs = read_inputs(x, y, sample_weight)
        callbacks = list_callbacks(callbacks)
        class_weight, batch_class_weight = self._split_class_weights(class_weight, inputs, callbacks)
        validation_batch_size = kwargs.get("validation_batch_size") or batch_size
        validation_order = "given" if kwargs.get("validation_steps") else "sorted"
        validation_options = BatchOptions(validation_batch_size, validation_order, verbose=verbose != 0)
        inputs, validation_batches = self._hold_out(inputs, validation_data, validation_split, validation_options)
        # The step count makes a second `fit` shuffle differently, yet a run from the same state is repeatable.
        seeds = (seed, int(keras.ops.convert_to_numpy(self.optimizer.iterations)))
        order = "shuffle" if shuffle else "given"
        options = BatchOptions(batch_size, order, seeds, training=True, steps=steps_per_epoch, verbose=verbose != 0)
        x, y, sample_weight = self.batches(inputs, replace(options, class_weight=batch_class_weight))
        run = TrainingRun.begin(self, x, epochs, steps_per_epoch, initial_epoch, callbacks)
        x, class_weight = weigh_generator(keras_input(x, run.first_step), class_weight)
        with run.in_progress():
            return super().fit(
                x=x,
                y=y,
                epochs=epochs,
                verbose=verbose,
                callbacks=run.callbacks,
                validation_data=validation_batches,
                shuffle=False,  # the batches already come in the chosen order
                class_weight=class_weight,
                sample_weight=sample_weight,
                initial_epoch=run.initial_epoch,
                steps_per_epoch=run.steps_per_epoch,
                **kwargs,
            )

    def merge_weights(self) -> None:
        """Merge weights that the task stores separately during training; by default, do nothing."""

    def _split_class_weights(
        self, class_weight: Any, inputs: TaskInputs, callbacks: Sequence[keras.callbacks.Callback]
    ) -> tuple[dict[int, float] | None, dict[int, float] | None]:
        """Check class weights and return `(keras_weights, batch_weights)`, of which at least one is None.

        `batch_weights` become part of the batches; Keras applies `keras_weights` to batches that come from the user.

        Raises:
            ValueError: If `inputs` is a stream, or batches in a resumable run; see also `encode_class_weight`.
        """
        if class_weight is None:
            return None, None
        if isinstance(inputs, StreamedExamples):
            raise ValueError("A stream takes no `class_weight`: pass texts in memory, such as a list.")
        weights = self.encode_class_weight(class_weight)
        if self.labels_words or not inputs.holds_batches:
            return None, weights
        if find_checkpoint(callbacks):
            raise ValueError("A run that can be resumed takes no `class_weight`: pass `sample_weight`.")
        return weights, None

    def _hold_out(
        self, inputs: TaskInputs, validation_data: Any, fraction: float, options: BatchOptions
    ) -> tuple[TaskInputs, TrainingData | None]:
        """Return the training inputs, and the validation data as batches for Keras, or None without validation."""
        if validation_data is None and not fraction:
            return inputs, None
        if validation_data is None:
            inputs, validation_inputs = self.split_validation(inputs, fraction)
        with add_place_to_errors("`validation_data`"):
            if validation_data is not None:
                validation_inputs = read_validation_data(validation_data, self.needs_labels)
            x, y, sample_weight = self.batches(validation_inputs, options)
        return inputs, (keras_input(x), y, sample_weight)

    # === Evaluate and predict ===

    def evaluate(
        self,
        x: Inputs | None = None,
        y: Labels | None = None,
        batch_size: int | None = None,
        sample_weight: Weights | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the loss and metrics on data in any form that `fit` takes; see `keras.Model.evaluate`."""
        check_arguments(batch_size=batch_size, **kwargs)
        # If sorted, the first `steps` batches would hold only the shortest texts.
        order = "given" if kwargs.get("steps") else "sorted"
        options = BatchOptions(batch_size, order, verbose=kwargs.get("verbose") != 0)
        x, y, sample_weight = self.batches(read_inputs(x, y, sample_weight), options)
        with suppress_retracing_warnings():
            return super().evaluate(keras_input(x), y, sample_weight=sample_weight, **kwargs)

    def report(
        self,
        x: Inputs,
        y: Labels | None = None,
        batch_size: int = 32,
        verbose: bool | int | str = "auto",
        errors: bool = False,
        columns: Mapping[str, Sequence[Any]] | None = None,
        history: Any = None,
    ) -> Report:
        """Evaluate the task and return a report of all its scores and tables, as printed by `lmzoo evaluate`.

        Printing a report shows it as tables.

        Args:
            x: texts in memory.
            y: labels, as for `fit`.
            batch_size: int, examples per batch.
            verbose: verbosity, as in `keras.Model.evaluate`.
            errors: whether to add the tables "worst", the most confident mistakes, and "by length"; and, if answers
                have probabilities, "calibration" and the score `ece`, the expected calibration error (Guo et al.,
                2017).
            columns: dict from column names to lists of values, one value per example, such as its source; adds scores
                by value.
            history: result of `fit`; adds the table "learning curve".

        Returns:
            A report with two dicts: `scores`, which holds the loss and metrics of `evaluate` and further scores, such
            as macro F1 or span F1; and `tables`, such as precision and recall by class, and the confusion matrix. If
            the scores include a perplexity, the loss is the mean over all tokens, whatever the batch size.

        Raises:
            TypeError: If `x` is not texts in memory, or is encoded although `errors` is True; if a column is not a
                list; or if `history` is not the result of `fit`.
            ValueError: If `errors` or `columns` are passed but the task's answers cannot be right or wrong, if a column
                does not have exactly one value per example, or if a column is named "length" and `errors` is True; see
                also `evaluate`.

        Example:

        ```python
        import lmzoo

        task = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
        print(task.report(["A fine film.", "A dull film."], ["good", "bad"], verbose=0))
        ```
        """
        inputs = read_inputs(x)
        if not isinstance(inputs, TextsInMemory):
            raise TypeError(f"A report needs texts in memory, got {type(x).__name__}: `evaluate` takes other data.")
        x = inputs.x
        table_options = {"errors": errors, "columns": columns, "history": history, "pairs": not self.labels_words}
        check_optional_tables(x, judged=self.judges(y), **table_options)
        metrics = self.measure(x, y if self.needs_labels else None, batch_size, verbose)
        report = self.compare([x], y, batch_size=batch_size, **metrics)
        return add_optional_tables(replace(report, scores={**metrics, **report.scores}), x, **table_options)

    def judges(self, y: Labels | None) -> bool:
        """Return whether the report with the labels `y` says of each answer whether it is right."""
        return self.needs_labels

    def measure(self, x: Any, y: Any, batch_size: int, verbose: bool | int | str = "auto") -> dict[str, float]:
        """Return the loss and metrics for `report` and `lmzoo evaluate`; by default, the results of `evaluate`."""
        return self.evaluate(x, y, batch_size, return_dict=True, verbose=verbose)

    def compare(self, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
        """Return a report that compares the task's answers with the labels; by default, an empty report.

        Args:
            parts: consecutive parts of the examples.
            y: labels of all examples.
            batch_size: int, examples per batch.
            **measured: the loss and metrics that `measure` returned.
        """
        return Report()

    def answers(self, *args: Any, **kwargs: Any) -> Any:
        """Return an answer for each example, as plain Python objects.

        In each task, this is an alias of the task's own method, such as `classify`. A subclass that overrides that
        method must repeat the assignment `answers = classify`.
        """
        raise NotImplementedError(f"A {type(self).__name__} gives no answers.")

    def check_answerable(self, x: Inputs, **options: Any) -> None:
        """Check that `answers` accepts every example, without predicting; by default, do nothing.

        Args:
            x: examples.
            **options: keyword arguments of `answers`.

        Raises:
            TypeError: See `answers`.
            ValueError: See `answers`.
        """

    def predict(self, x: Inputs, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Return the model's outputs, logits for most tasks, for texts or token features, in the order of the inputs.

        The default batch size is 32; see `keras.Model.predict` for the other arguments.
        """
        check_arguments(batch_size=batch_size, **kwargs)
        return predict(self, read_inputs(x), batch_size, **kwargs)

    def predict_encoded(self, encoded: EncodedInputs, batch_size: int, **kwargs: Any) -> Tensors:
        """Return the model's outputs for one or more encoded examples, in their order; see `keras.Model.predict`."""
        return predict_encoded(self, self, encoded, batch_size, **kwargs)

    def predict_batches(self, batches: Any, **kwargs: Any) -> Tensors:
        """Return the model's outputs for batches, concatenated; see `keras.Model.predict`."""
        return super().predict(batches, **kwargs)

    def training_batches(
        self, x: Inputs, y: Labels | None = None, batch_size: int | None = None, seed: int = 0
    ) -> Batches:
        """Return shuffled training batches as a `keras.utils.PyDataset`, for custom training loops.

        A loop after `fit`, at whose end the rate is 0 by default, must first call `model.optimizer.start_schedule()`.

        Args:
            x: texts.
            y: labels, as for `fit`.
            batch_size: int, 32 by default.
            seed: int, seed for shuffling and all other random choices.

        Raises:
            TypeError: If `x` is not texts.
            ValueError: See `fit`.
        """
        return self._make_text_batches(x, y, BatchOptions(batch_size, "shuffle", (seed,), training=True))

    def check_examples(self, x: Inputs, y: Labels | None = None) -> None:
        """Check texts in memory and their labels, without preparing the model for training on them.

        Raises:
            TypeError: If `x` is not texts.
            ValueError: See `fit`.
        """
        self._make_text_batches(x, y, BatchOptions())

    def _make_text_batches(self, x: Inputs, y: Labels | None, options: BatchOptions) -> Batches:
        """Return batches of texts in memory.

        Raises:
            TypeError: If `x` is not texts.
        """
        inputs = read_inputs(x, y)
        batches = self.batches(inputs, options)[0]
        if not isinstance(inputs, TextsInMemory) or not isinstance(batches, Batches):
            raise TypeError(f"`x` must be texts, got {type(x).__name__}.")
        return batches

    # === Single batches ===

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model on token features or, outside of graphs, on texts."""
        return super().__call__(self._convert_to_features(inputs), *args, **kwargs)

    def train_on_batch(
        self,
        x: Inputs,
        y: Labels | None = None,
        sample_weight: Weights | None = None,
        class_weight: Mapping[Any, float] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Train on one batch of texts or token features; see `keras.Model.train_on_batch`.

        If the optimizer's schedule has ended with the learning rate 0, as after `fit` by default, the learning rate is
        the optimizer's `learning_rate` from then on.
        """
        if class_weight is not None:
            class_weight = self.encode_class_weight(class_weight)
        prepare_step(self)
        step = int(keras.ops.convert_to_numpy(self.optimizer.iterations))
        return super().train_on_batch(*self._convert_to_batch(x, y, sample_weight, step, class_weight), **kwargs)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Tensor | None:
        """Compute the loss like `keras.Model.compute_loss`, but return 0 for a batch without examples."""
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        # Keras' mean over no examples is a tensor without values, for which JAX cannot compute a gradient.
        return keras.ops.sum(loss) if loss is not None and tuple(loss.shape) == (0,) else loss

    def test_on_batch(
        self, x: Inputs, y: Labels | None = None, sample_weight: Weights | None = None, **kwargs: Any
    ) -> Any:
        """Evaluate one batch of texts or token features; see `keras.Model.test_on_batch`."""
        return super().test_on_batch(*self._convert_to_batch(x, y, sample_weight), **kwargs)

    def predict_on_batch(self, x: Inputs) -> Any:
        """Return the outputs for one batch of texts, padded to the longest, or of token features."""
        return super().predict_on_batch(self._convert_to_features(x))

    def _convert_to_features(self, x: Any) -> Any:
        """Convert texts to the model's inputs, and return anything else unchanged."""
        check_not_symbolic(x, self)
        inputs = read_inputs(x)
        if not isinstance(inputs, TextsInMemory):
            return x
        encoded = self.encode_inputs(inputs.x)
        features = self.features(encoded, np.arange(len(encoded)), int(encoded.lengths.max(initial=1)))
        return {**features, **self.extra_features(encoded)}

    def _convert_to_batch(
        self,
        x: Any,
        y: Labels | None,
        sample_weight: Weights | None,
        step: int = 0,
        class_weight: Mapping[int, float] | None = None,
    ) -> tuple[Any, Labels | None, Weights | None]:
        """Return `(x, y, sample_weight)` for Keras, with texts converted to the model's inputs.

        `step` seeds all random choices. `class_weight` is a dict from class numbers to weights.
        """
        inputs = read_inputs(x, y, sample_weight)
        if isinstance(inputs, TokenFeatures):
            return inputs.as_batch(self, class_weight)
        examples = self.encode_examples(inputs.x, y, sample_weight)
        if class_weight is not None:
            examples = weigh_classes(examples, class_weight)
        lengths = examples.encoded.lengths
        rng = np.random.default_rng((0, step))
        batch = self.make_batch(examples, np.arange(len(lengths)), int(lengths.max(initial=1)), rng)
        return keras.utils.unpack_x_y_sample_weight(batch)

    # === Distillation ===

    def compared_outputs(self) -> ComparedOutputs:
        """Return the symbolic outputs that `lmzoo.training.distill` compares, for tasks that define `distillation`."""
        raise NotImplementedError(f"A {type(self).__name__} cannot be distilled.")

    # === Save, load and export ===

    def save(self, filepath: str | Path, overwrite: bool = True, **kwargs: Any) -> None:
        """Write a `.keras` file with weights, vocabulary, labels and optimizer state; see `keras.Model.save`.

        If writing fails, for example on a full disk, an existing file is left unchanged. If several processes train the
        model, call this in only one of them.

        Raises:
            ValueError: If the path does not end in `.keras`.
            FileExistsError: If the file exists and `overwrite` is False.
        """
        self._warn_about_merged_lora()
        super().save(filepath, overwrite, **kwargs)

    @classmethod
    def load(cls, filepath: str | Path, compile: bool = True) -> Self:
        """Load a task from a `.keras` file, which may come from an untrusted source.

        `keras.saving.load_model` reads the same files, but unpacks them before lmzoo can check them: it accepts a small
        file that unpacks to gigabytes, and a failed load can leave files in the temporary directory. This method limits
        the unpacked size and leaves no files behind.

        Args:
            filepath: path of a `.keras` file that `save` wrote.
            compile: whether to restore the settings of `compile` and the optimizer's state.

        Returns:
            The task.

        Raises:
            ValueError: If the file is damaged, holds a model of another class or unpacks to more than 64 MiB plus 10
                times its size; see also `keras.saving.load_model`.
            OSError: If the file cannot be read or unpacked.

        Example:

        ```python
        import lmzoo

        classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
        classifier.save("reviews.keras")
        again = lmzoo.models.Task.load("reviews.keras")
        ```
        """
        model = load_keras_file(filepath, compile)
        if not isinstance(model, cls):
            raise ValueError(f"{os.fspath(filepath)} holds a {type(model).__name__}, not a {cls.__name__}.")
        return model

    def save_assets(self, directory: str) -> None:
        """Write the vocabulary to a directory that Keras packs into a `.keras` file; called by Keras."""
        if self.preprocessor is not None:
            self.preprocessor.save_assets(directory)

    def load_assets(self, directory: str) -> None:
        """Read the vocabulary from a directory unpacked from a `.keras` file; called by Keras."""
        if self.preprocessor is not None:
            self.preprocessor.load_assets(directory)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, read from the attributes of the same names."""
        config = {name: as_python_values(getattr(self, name)) for name in list_constructor_arguments(type(self))}
        serialized_parts = {
            name: keras.saving.serialize_keras_object(config[name]) for name in ("backbone", "preprocessor")
        }
        if self.name == self.default_name:  # each copy gets its own name, so that one model can contain several
            config["name"] = None
        return {**config, **serialized_parts, "labels": None if self.labels is None else list(self.labels)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        """Build a task from the output of `get_config`, without compiling it: Keras compiles saved models itself."""
        deserialized_arguments = {
            name: keras.saving.deserialize_keras_object(config[name]) for name in ("backbone", "preprocessor")
        }
        task = cls(**{**config, **deserialized_arguments})
        task.compiled = False
        task.loss = None
        task.optimizer = None
        return task

    @classmethod
    def from_preset(
        cls,
        preset: str | Path,
        load_weights: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        dropout: float | None = None,
        sequence_length: int | None = None,
        labels: Sequence[str] | None = None,
        preprocessor: Preprocessor | None = None,
        family: str | None = None,
        task: str | None = None,
        **task_kwargs: Any,
    ) -> Self:
        """Build the task on a preset's backbone, with the preset's head if it fits the task.

        Args:
            preset: a name from `lmzoo.list_presets()`, a local directory, `hf://org/name` or `kaggle://...`.
            load_weights: whether to load the weights; if False, they are initialized at random.
            dtype: dtype policy, such as `"mixed_bfloat16"`.
            dropout: float, dropout rate inside the backbone; the preset's by default.
            sequence_length: int, maximum number of tokens in a sequence; the preset's by default.
            labels: names of the classes.
            preprocessor: `lmzoo.text.Preprocessor`; the preset's by default.
            family: name of the family, such as "bert", for a checkpoint that does not specify its family.
            task: name of one of several tasks in a preset, see `Backbone.save_to_preset`.
            **task_kwargs: further arguments of the task's constructor, such as `num_classes` or `name`.

        Returns:
            The task.

        Raises:
            ValueError: If the preset is unknown (the message suggests similar names), a file is changed or missing, or
                `sequence_length` is above the model's maximum length.

        Example:

        ```python
        import lmzoo

        classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
        ```
        """
        if labels is not None:
            task_kwargs["labels"] = labels
        backbone_overrides = {
            key: value for key, value in (("dtype", dtype), ("dropout", dropout)) if value is not None
        }
        return load_task(
            preset,
            cls,
            Backbone,
            load_weights=load_weights,
            backbone_overrides=backbone_overrides,
            sequence_length=sequence_length,
            preprocessor=preprocessor,
            family=family,
            task=task,
            **task_kwargs,
        )

    def copy_with(self, **changes: Any) -> Self:
        """Return a copy of the task with the same weights and changed backbone arguments, such as its `dtype`.

        The copy is compiled with the defaults. If the task uses LoRA, the updates are merged into the copy's weights,
        all of which are trainable; updates to int8 weights are copied, not merged.

        Args:
            **changes: arguments of the backbone's constructor that do not change the shapes of its weights.

        Raises:
            ValueError: If `dtype` is to change and the backbone is quantized.

        Example:

        ```python
        import lmzoo

        classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
        small = classifier.copy_with(dtype="bfloat16")
        ```
        """
        if "dtype" in changes and any(map(is_quantized, sublayers(self.backbone))):
            raise ValueError("Quantized weights cannot be cast to another dtype. Make the copy before `quantize`.")
        backbone = type(self.backbone).from_config({**self.backbone.get_config(), **changes})
        copy = type(self)(**{**self.get_config(), "backbone": backbone, "preprocessor": self.preprocessor})
        copy.set_weights([keras.ops.convert_to_numpy(value) for _, value in get_stored_weights(self)])
        return copy

    def resize_token_embeddings(self, size: int, seed: int = 0) -> Self:
        """Return a copy of the task with embeddings for `size` tokens, such as after adding tokens to its tokenizer.

        The head keeps its weights. Weights with a vocabulary axis, such as the bias of a masked language model, get new
        entries in the same way as the embeddings: see `Backbone.resize_token_embeddings`. The copy is compiled with the
        defaults.

        Args:
            size: int, number of tokens; if it is lower than before, the last rows are dropped.
            seed: int, seed for initializing new rows.

        Raises:
            ValueError: If the tokenizer has more than `size` tokens; see also `Backbone.resize_token_embeddings`.

        Example:

        ```python
        import lmzoo

        model = lmzoo.models.MaskedLM.from_preset("bert_nano_en_uncased")
        model.preprocessor.tokenizer.add_tokens(["mRNA"])  # 1
        model = model.resize_token_embeddings(model.preprocessor.tokenizer.vocabulary_size)
        ```
        """
        backbone = self.backbone.resize_token_embeddings(size, seed)
        resized_task = type(self)(**{**self.get_config(), "backbone": backbone, "preprocessor": self.preprocessor})
        copy_weights(self, resized_task, seed)
        resized_task.merge_weights()  # separately stored tables have different new rows until they are merged
        return resized_task

    def save_to_preset(
        self, directory: str | Path, overwrite: bool = True, weights_dtype: str = "float32", **unknown: Any
    ) -> None:
        """Write the backbone, head, labels and vocabulary as a preset.

        Args:
            directory: path of the preset. If writing fails, an existing preset is left unchanged.
            overwrite: whether to replace an existing preset.
            weights_dtype: dtype of the stored weights: "float32", unchanged; "float16", for half the size; or "int8",
                for a quarter, where each row of a matrix is rounded to 255 levels. A loaded model has the same dtype
                and speed in each case, and can be trained. Evaluate a model that was rounded to "int8".
            **unknown: arguments of other libraries, which raise an error with advice.

        Raises:
            FileExistsError: If `directory` is not empty and `overwrite` is False, or if it is a file, is a directory of
                another kind or contains the working directory.
            TypeError: If an argument is unknown.
            ValueError: If `weights_dtype` is none of the three.
        """
        refuse_arguments("save_to_preset", unknown, SAVE_TO_PRESET)
        self._warn_about_merged_lora()
        save_preset(self, directory, overwrite, self.preprocessor, weights_dtype=weights_dtype)

    def _warn_about_merged_lora(self) -> None:
        """Warn if weights will be saved with LoRA's low-rank updates added to them instead of separately."""
        adapted_layers = [layer for layer in sublayers(self.backbone) if getattr(layer, "lora_enabled", False)]
        if not all(map(stores_updates, adapted_layers)):
            warnings.warn(
                "The file holds the weights with LoRA's updates added: a model loaded from it predicts the same, but "
                "all of its weights are trained until `backbone.enable_lora` is called again.",
                stacklevel=3,
            )

    def export(self, path: str | Path, verbose: bool = True, dtype: Literal["int8"] | None = None) -> None:
        """Export the task as a TensorFlow SavedModel that takes strings, or as an ONNX or LiteRT file.

        For most tasks, the signature `serving_default` takes `text`, a string tensor (n,); `pair` takes `text` and
        `text_pair`; `tokens` takes the token features. All return a dict of named tensors: the task's answers and, for
        strings, `truncated`, bool (n,). The model includes the vocabulary. Loading it needs `tensorflow` and
        `tensorflow_text`, but not lmzoo.

        If the path ends in `.onnx` or `.tflite`, a single file for ONNX Runtime or LiteRT is written, without tokenizer
        and labels. Its model takes token features and returns the outputs of `predict` under the name `logits`
        (`TextEmbedder`: `embedding`). ONNX needs `pip install 'lmzoo[onnx]'`; both formats need float32. With
        `dtype="int8"`, an .onnx file takes a quarter of the space, and ONNX Runtime multiplies integers. This changes
        the outputs slightly, so evaluate the exported model.

        On backends other than TensorFlow, a child process exports the model, and TensorFlow must be installed.

        Args:
            path: directory of the model, for TensorFlow Serving `<name>/<integer version>`, or a file. An existing
                model is replaced only after the new one is complete, and is left unchanged if writing fails.
            verbose: whether to print the path and a description of the inputs and outputs.
            dtype: "int8" for an .onnx file with int8 weights and activations rounded to int8; None for the dtype of the
                weights.

        Raises:
            ImportError: If a package needed to write the format is not installed.
            NotFiniteError: If weights are NaN or infinite.
            RuntimeError: If the child process that exports fails.
            ValueError: If the task has no preprocessor or no exportable answers, if the path is a directory of versions
                or has an unknown suffix, or if the model uses ops that the format's runtime does not have.
        """
        export_task(self, path, verbose, dtype)

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the exported model's answers to token features as named tensors, computed with TensorFlow ops."""
        raise NotImplementedError(f"{type(self).__name__} must define `serve`.")

    def signatures(self) -> Signatures:
        """Return the signatures of the exported model.

        Returns:
            A `tf.Module` that holds the tables used by the functions, and a dict from the signatures' names to
            `tf.function`s that take named tensors and return a dict of tensors.
        """
        return text_signatures(self)
