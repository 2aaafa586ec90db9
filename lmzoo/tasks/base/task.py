"""The base of all tasks: models that take strings, trained and saved like any Keras model."""

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

from lmzoo.common.tensor_types import Features, Tensors
from lmzoo.common.tensorflow_kernels import warn_if_onednn_is_off
from lmzoo.evaluation.reports import Report
from lmzoo.families.backbone import Backbone
from lmzoo.families.named_inputs import NamedInputsModel
from lmzoo.families.resizing import copy_weights
from lmzoo.files.atomic import atomic_file, check_path
from lmzoo.layers.adapted import stores_updates
from lmzoo.layers.configured import constructor_arguments
from lmzoo.layers.finite import ReportsNotFinite
from lmzoo.layers.sublayers import merged_weights, sublayers
from lmzoo.parallel.processes import alone
from lmzoo.presets.keras_files import load_keras_file
from lmzoo.presets.keras_preset import save_preset
from lmzoo.presets.loading import load_task
from lmzoo.registry.family import Family, family_of
from lmzoo.registry.head_kinds import HasHead
from lmzoo.serving.export import export_task, text_signatures
from lmzoo.serving.served_model import Signatures
from lmzoo.tasks.base.arguments import KnownArguments, callback_list, check_arguments
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
    example_weights,
)
from lmzoo.tasks.base.labels import encode_classes
from lmzoo.tasks.base.prediction import expected_retracing, predict
from lmzoo.tasks.base.preprocessor_checks import check_preprocessor, fit_preprocessor
from lmzoo.tasks.base.reports import check_additions, with_errors
from lmzoo.tasks.inputs import (
    StreamedExamples,
    TaskInputs,
    TextsInMemory,
    TokenFeatures,
    check_not_symbolic,
    errors_in,
    read_inputs,
    read_validation_data,
)
from lmzoo.tasks.word_weights import weigh_classes
from lmzoo.text import Encoded, EncodedTexts, Preprocessor
from lmzoo.text.batching import Batches
from lmzoo.text.keras_input import keras_input
from lmzoo.text.segments import split_segments
from lmzoo.training.fine_tuning import FineTuningRecipe, usual_recipe
from lmzoo.training.losses import loss_of_logits
from lmzoo.training.optimizers import AdamW
from lmzoo.training.training_run import TrainingRun, find_checkpoint

if TYPE_CHECKING:
    import tensorflow as tf

# A loss as `keras.Model.compile` takes it, or a dict of them by output.
Losses: TypeAlias = Any
# Metrics as `keras.Model.compile` takes them: a list, or a dict of lists by output.
Metrics: TypeAlias = list[Any] | dict[str, Any]


class Task(HasHead, KnownArguments, NamedInputsModel, ReportsNotFinite):
    """A backbone, a head and a preprocessor in one Functional model.

    `fit`, `evaluate` and `predict` take raw text (a list or array of strings, pairs as a tuple of two lists or a list
    of 2-tuples), a `tf.data.Dataset` of strings, or what Keras takes: dicts of token features. `fit` and `evaluate`
    also take a `lmzoo.data.stream`. Lists and arrays of text are tokenized once and batched by length; datasets and
    streams are tokenized as they are read.

    A subclass builds the head in its constructor, which ends with `self.compile()`, and defines what differs from the
    defaults:

    * training: `default_loss`, `default_metrics` and `default_optimizer`; `uses_pooler` or `unused_variables`, weights
      that its loss does not reach;
    * examples: `encode_labels`; for other inputs than texts and pairs also `encode_inputs`, `encode_examples`,
      `features` and `make_batch`; `learns_from` if there are no labels; `batches` and `split_validation` if batches
      are not made of independent examples;
    * outputs: `per_token`, `independent_rows`;
    * the command line: `commands`, `input_names`, `arguments_for`;
    * answers: a method of its own, such as `classify`, which is called `answers` as well; `serve`, `served_outputs`
      and, for other strings than `text` and `text_pair`, `signatures`.

    Args:
        backbone: `lmzoo.models.Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None to work on token features only.
        inputs: symbolic inputs, a dict.
        outputs: symbolic outputs.
        labels: names of the classes, or None.
        name: name of the model; by default that of its class, numbered if there are several.

    Example: see `lmzoo.models.TextClassifier`.
    """

    backbone: Backbone
    preprocessor: Preprocessor | None
    default_name: str | None  # the name that Keras chose

    learns_from: str = ""  # what `fit` takes if it takes no labels, for messages: "texts alone"
    independent_rows: bool = True  # whether the sequences of token features may be shuffled
    splits_examples: ClassVar[bool] = False  # whether an example may become any number of sequences
    per_token: bool = False  # whether the outputs' second axis is that of the tokens

    served_outputs: ClassVar[tuple[str, ...]] = ()
    output_name: ClassVar[str] = "logits"  # of the outputs of `predict`, in files for other runtimes
    predicts: ClassVar[str] = ""  # what `predict` returns, with its shape, for tables of tasks
    # What the exported model takes and returns, for tables of tasks.
    takes: ClassVar[str] = "`text` (n,)"
    serves: ClassVar[str] = ""
    # Names on the command line, each with how the examples are read there, see `lmzoo_cli.task_kinds`.
    commands: ClassVar[tuple[tuple[str, str], ...]] = ()
    input_names: ClassVar[tuple[str, ...]] = ("text", "text_pair")  # of the parts of an input, in files of predictions

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None,
        inputs: Features,
        outputs: Tensors,
        labels: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.default_name = self.name if name is None else None
        if backbone.reads_source and not self.supports(family_of(backbone)):
            raise ValueError(
                f"A {type(backbone).__name__} writes one sequence from another: it is for a Seq2SeqLM, not for a "
                f"{type(self).__name__}."
            )
        self.backbone = backbone
        self.preprocessor = None if preprocessor is None else fit_preprocessor(backbone, preprocessor)
        self.labels = None if labels is None else tuple(labels)
        self.dtype_policy = backbone.dtype_policy

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the task works on backbones of a family; by default on those that read one sequence."""
        return not family.backbone.reads_source

    @classmethod
    def arguments_for(cls, y: Any) -> dict[str, Any]:
        """Return arguments of the constructor that the labels of the examples suggest, for the command line."""
        return {}

    @property
    def family(self) -> Family:
        """The record of the backbone's family."""
        return family_of(self.backbone)

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

    @property
    def served_length(self) -> int:
        """The most tokens of an input that the exported model reads."""
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

    # === Compile ===

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        """Return the optimizer that `compile` takes for `"auto"`."""
        return AdamW(self.recipe.learning_rate, global_clipnorm=1.0)

    @property
    def recipe(self) -> FineTuningRecipe:
        """The settings for fine-tuning that the backbone recommends for this kind of head, or the usual ones."""
        found = self.backbone.fine_tuning.get(self.head_kind) or self.backbone.usual_recipes.get(self.head_kind)
        return found or usual_recipe(self.backbone.config.hidden_dim)

    def default_loss(self) -> Losses:
        """Return the loss that `compile` takes for `"auto"`."""
        raise NotImplementedError(f"{type(self).__name__} must define `default_loss`.")

    def default_loss_weights(self) -> dict[str, float] | None:
        """Return the weights of the losses that `compile` takes for `"auto"`; None if all count the same."""
        return None

    def default_metrics(self) -> Metrics:
        """Return the metrics that `compile` takes for `"auto"`: a list, or a dict of lists by output."""
        return []

    # A loss that does not reach a weight cannot train it, and Keras would warn of the missing gradients in every `fit`.
    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """Weights that training updates, without `unused_variables`."""
        return self._split_unused(super().trainable_variables)[0]

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        """All other variables, `unused_variables` included."""
        return super().non_trainable_variables + self._split_unused(super().trainable_variables)[1]

    trainable_weights = trainable_variables

    @property
    def non_trainable_weights(self) -> list[keras.Variable]:
        """All other weights, `unused_variables` included, but neither seeds nor metrics."""
        return super().non_trainable_weights + self._split_unused(super().trainable_weights)[1]

    def _split_unused(self, variables: list[keras.Variable]) -> tuple[list[keras.Variable], list[keras.Variable]]:
        """Return the variables that are used, and the unused ones."""
        unused = {id(v) for v in self.unused_variables}
        return [v for v in variables if id(v) not in unused], [v for v in variables if id(v) in unused]

    @property
    def unused_variables(self) -> list[keras.Variable]:
        """Variables that the task's loss does not reach: those of a pooler that it does not use."""
        pooler = None if self.uses_pooler else self.backbone.pooler
        return [] if pooler is None else pooler.variables

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer = "auto",
        loss: Losses = "auto",
        metrics: Metrics | Literal["auto"] | None = "auto",
        weighted_metrics: Metrics | None = None,
        **kwargs: Any,
    ) -> None:
        """Configure training as `keras.Model.compile` does; `"auto"` takes the task's default.

        The default optimizer is `lmzoo.training.AdamW` with gradients clipped to norm 1, a warm-up over the first tenth
        of a `fit` and a linear decay to its end. The highest rate is that of `recipe`: the preset's for this kind of
        head or, if it recommends none, 5e-5 · 768 / H, which is the value of Devlin et al. (2019) for a width of 768,
        and higher for narrower models.

        Args:
            optimizer: `"auto"` or a Keras optimizer.
            loss: `"auto"` or a Keras loss. The model's outputs are logits, and so a name such as
                `"sparse_categorical_crossentropy"` stands for the loss of logits.
            metrics: `"auto"` or a list of Keras metrics. They take the weights of the examples into account. For a task
                with several outputs, `loss` is a dict and `metrics` a dict of lists.
            weighted_metrics: more metrics.
            **kwargs: of `keras.Model.compile`, such as `jit_compile`.

        Raises:
            TypeError: for metrics that are neither a list nor a dict of lists.
            ValueError: for a cross-entropy of probabilities.
        """
        if isinstance(optimizer, str) and optimizer == "auto":
            optimizer = self.default_optimizer()
        if isinstance(loss, str) and loss == "auto":
            loss = self.default_loss()
            kwargs.setdefault("loss_weights", self.default_loss_weights())
        if isinstance(metrics, str) and metrics == "auto":
            metrics = self.default_metrics()
        weighted_metrics = _joined(metrics, weighted_metrics)
        super().compile(optimizer=optimizer, loss=loss_of_logits(loss), weighted_metrics=weighted_metrics, **kwargs)
        self.backbone.set_compiled_by_xla(self.jit_compile)
        self.forget_compiled()

    def forget_compiled(self) -> None:
        """Drop compiled functions, which hold the weights and settings of the time when they were made."""
        self.train_function = self.test_function = self.predict_function = None

    def quantize(self, mode: str = "int8", **kwargs: Any) -> None:
        """Quantize the backbone's weights, for smaller files and predictions; the head stays as it is.

        Args:
            mode: as in `keras.Model.quantize`.
            **kwargs: of `keras.Model.quantize`.
        """
        config = self.get_compile_config()
        with warnings.catch_warnings():
            # Dropout and other layers without weights have nothing to quantize.
            warnings.filterwarnings("ignore", "Layer .* does not have a `quantize`")
            self.backbone.quantize(mode, **kwargs)
        self.forget_compiled()  # and the optimizer: both know the old weights
        if config is not None:
            config["optimizer"]["built"] = False
            self.compile_from_config(config)

    def get_compile_config(self) -> dict[str, Any] | None:
        """Return the arguments of `compile`, or None for a task that is not compiled.

        The optimizer's says whether it has state yet. It is not an argument of its own, since any model can be compiled
        with these, such as that of `keras.models.clone_model`.
        """
        config = super().get_compile_config()
        if not config:
            return config
        return {**config, "optimizer": {**config["optimizer"], "built": self.optimizer.built}}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile as `get_compile_config` says and create the optimizer's state, ready to be loaded."""
        optimizer = config.get("optimizer")
        built = isinstance(optimizer, dict) and optimizer.get("built", False)
        built = config.get("optimizer_built", built)  # where older files have it
        config = keras.saving.deserialize_keras_object(config)
        config.pop("optimizer_built", None)
        self.compile(**config)
        if built:
            self.build_optimizer()

    def build_optimizer(self) -> None:
        """Create the optimizer's state, unless it has been created."""
        if not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)

    # === Examples, for subclasses to define ===

    def encode_inputs(self, x: Texts) -> EncodedInputs:
        """Return texts or pairs as packed sequences of token ids, or another kind of `lmzoo.text.Encoded`.

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
        """Check that there is a preprocessor whose sequences fit the model.

        Raises:
            ValueError: if not.
        """
        check_preprocessor(self.backbone, self.text_preprocessor)  # again, since `sequence_length` can be set

    def encode_examples(self, x: Texts, y: Labels | None = None, sample_weight: Weights | None = None) -> Examples:
        """Return the texts, labels and weights that `fit` got, encoded, and checked to be equally many.

        Raises:
            TypeError: naming the position of an entry that is not text.
            ValueError: for labels that are missing, too few, or unknown to the model.
        """
        self.check_unlabeled(y)
        return self._with_labels(self.encode_inputs(x), y, sample_weight)

    def _with_labels(self, encoded: EncodedInputs, y: Labels | None, sample_weight: Weights | None) -> Examples:
        """Return encoded examples with their labels and weights, checked to be equally many."""
        examples = Examples(encoded, self.encode_labels(y), example_weights(sample_weight))
        self.check_counts(len(encoded), examples.labels, examples.weights)
        return examples

    def _pack_documents(
        self, x: Any, y: Labels | None, sample_weight: Weights | None, pack: Callable[[Any, Preprocessor], EncodedTexts]
    ) -> Examples:
        """Return the sequences that `pack` makes of texts or documents, each of parts of several.

        Sequences that are already made are returned unchanged.

        Raises:
            ValueError: for labels, or for weights of documents.
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
        return self._with_labels(x, None, sample_weight)

    def check_unlabeled(self, y: Labels | None) -> None:
        """Check that a task that takes no labels gets none.

        Raises:
            ValueError: if there are.
        """
        if y is not None and not self.needs_labels:
            raise ValueError(
                f"{type(self).__name__} learns from {self.learns_from}: it takes no labels (`y`). "
                "Pairs alone, in a `tf.data.Dataset` or as `validation_data`, are ((firsts, seconds),)."
            )

    def check_counts(self, count: int, y: Any, sample_weight: Any) -> None:
        """Check that there are `count` labels, if the task needs them, and `count` weights, if any.

        Raises:
            ValueError: if not.
        """
        if y is None and self.needs_labels:
            raise ValueError(f"{type(self).__name__} needs a label for each text: pass `y`.")
        for what, values in (("labels", y), ("weights", sample_weight)):
            if values is not None and len(values) != count:
                raise ValueError(f"Got {count} texts but {len(values)} {what}.")

    def encode_labels(self, y: Labels | None) -> Any:
        """Return labels as the array that the loss takes, each of them checked; None stays None."""
        return as_array(y)

    def encode_class_weight(self, class_weight: Mapping[Any, float]) -> dict[int, float]:
        """Return weights of all classes by number, 1 for classes that are not given.

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
        with errors_in("`class_weight`"):
            for name, weight in class_weight.items():
                number = int(encode_classes([name], self.num_classes, self.labels)[0])
                if not (isinstance(weight, numbers.Real) and 0 <= float(weight) < math.inf):
                    raise ValueError(
                        f"the weight of {name!r} must be a finite number of at least 0, got {weight!r:.60}."
                    )
                weights[number] = float(weight)
        return weights

    def make_batch(self, examples: Examples, indices: np.ndarray, width: int, rng: np.random.Generator) -> Batch:
        """Return a batch to train on or to evaluate: the examples at `indices` (b,), padded to `width`.

        `rng` is for everything random.

        Returns:
            `(features,)`, `(features, y)` or `(features, y, sample_weight)`.
        """
        arrays = [a[indices] for a in examples[1:] if a is not None]
        return (self.features(examples.encoded, indices, width), *arrays)

    def features(self, encoded: EncodedInputs, indices: np.ndarray, width: int) -> FeatureArrays:
        """Return the model's inputs for some examples, padded to `width`; see `Preprocessor.features`."""
        return self.text_preprocessor.features(encoded, indices, width)

    def backbone_inputs(self, features: Features) -> Features:
        """Return the token features that the backbone gets; by default all but the task's own inputs."""
        own = self.input.keys() - self.backbone.input.keys()
        return {name: values for name, values in features.items() if name not in own}

    def extra_features(self, encoded: EncodedInputs) -> FeatureArrays:
        """Return inputs that predictions need in addition to the backbone's: arrays with one row per example."""
        return {}

    def batches(self, inputs: TaskInputs, options: BatchOptions) -> TrainingData:
        """Return the data of `fit` and `evaluate`: `(x, y, sample_weight)` as Keras takes them.

        By default texts become batches of examples of similar length, which hold labels and weights as well.
        """
        return inputs.batches(self, options)

    def split_validation(self, inputs: TaskInputs, fraction: float) -> tuple[TaskInputs, TaskInputs]:
        """Return the examples to train on, and the last `fraction` of them to validate on.

        Raises:
            ValueError: if one of the two would be empty, or if the examples are not in memory.
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
        """Train the model; see `keras.Model.fit`.

        Args:
            x: texts, a `tf.data.Dataset` of them with labels, or token features. `lmzoo.data.from_table` returns the
                texts and labels in a table, and `lmzoo.data.stream` those in rows that may be larger than memory.
            y: labels: integers, or strings if the task has `labels`.
            batch_size: int, by default 32 (`BidirectionalLM`: 128).
            epochs: int, epoch to stop at.
            verbose: as in Keras.
            callbacks: as in Keras.
            validation_split: share of the examples, the last ones, to hold out.
            validation_data: `(x, y)` or `(x, y, sample_weight)`, a dataset, or a stream; `x` alone for a task without
                labels.
            shuffle: whether each epoch has a new order; False keeps the given one.
            class_weight: weight of each class, by number or by name.
            sample_weight: float array (n,); for `TokenClassifier` also lists, the weights of each text's words.
            initial_epoch: int, epoch to start at.
            steps_per_epoch: int, batches of an epoch; all by default. Required for a stream of unknown length.
            seed: int, of the order of the examples and of masking.
            **kwargs: of `keras.Model.fit`.

        Returns:
            Keras' history of losses and metrics.

        Raises:
            TypeError: naming the position of an entry that is not text; for callbacks that are not Keras callbacks.
            ProcessesError: if the other processes that train the model have other data, or one of them has ended.
            ValueError: before the first step, for labels that the model does not have, weights that are NaN, infinite
                or negative, and counts that are too small or not integers.
            NotFiniteError: if training diverges; see `StopOnDivergence`.
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
        if keras.backend.backend() == "tensorflow":
            warn_if_onednn_is_off()
        if self.optimizer is None:
            raise ValueError("This model was loaded without its optimizer: call `compile()` before `fit`.")
        inputs = read_inputs(x, y, sample_weight)
        callbacks = callback_list(callbacks)
        class_weight, word_weight = self._class_weights(class_weight, inputs, callbacks)
        validation_size, steps = kwargs.get("validation_batch_size") or batch_size, kwargs.get("validation_steps")
        validation = BatchOptions(validation_size, "given" if steps else "sorted", verbose=verbose != 0)
        inputs, validated = self._hold_out(inputs, validation_data, validation_split, validation)
        # A second `fit` has another order; the same model always has the same.
        seeds = (seed, int(keras.ops.convert_to_numpy(self.optimizer.iterations)))
        order = "shuffle" if shuffle else "given"
        options = BatchOptions(batch_size, order, seeds, training=True, steps=steps_per_epoch, verbose=verbose != 0)
        x, y, sample_weight = self.batches(inputs, replace(options, class_weight=word_weight))
        run = TrainingRun.begin(self, x, epochs, steps_per_epoch, initial_epoch, callbacks)
        with run.stoppable():
            return super().fit(
                x=keras_input(x, run.first_step),
                y=y,
                epochs=epochs,
                verbose=verbose,
                callbacks=run.callbacks,
                validation_data=validated,
                shuffle=False,  # only arrays could be shuffled by Keras, and those are batches by now
                class_weight=class_weight,
                sample_weight=sample_weight,
                initial_epoch=run.initial_epoch,
                steps_per_epoch=run.steps_per_epoch,
                **kwargs,
            )

    def _class_weights(
        self, class_weight: Any, inputs: TaskInputs, callbacks: Sequence[keras.callbacks.Callback]
    ) -> tuple[dict[int, float] | None, dict[int, float] | None]:
        """Return the checked weights of classes for Keras, which weighs examples, and those for the words of examples.

        Raises:
            ValueError: for examples or runs that take none; see `encode_class_weight`.
        """
        if class_weight is None:
            return None, None
        if isinstance(inputs, StreamedExamples):
            raise ValueError("A stream takes no `class_weight`: pass texts in memory, such as a list.")
        weights = self.encode_class_weight(class_weight)
        if self.labels_words:
            return None, weights
        if find_checkpoint(callbacks):
            raise ValueError("A run that can be resumed takes no `class_weight`: pass `sample_weight`.")
        return weights, None

    def _hold_out(
        self, inputs: TaskInputs, data: Any, fraction: float, options: BatchOptions
    ) -> tuple[TaskInputs, TrainingData | None]:
        """Return the inputs to train on, and for Keras what to validate on: `data`, or a fraction of the inputs."""
        if data is None and not fraction:
            return inputs, None
        if data is None:
            inputs, held_out = self.split_validation(inputs, fraction)
        with errors_in("`validation_data`"):
            if data is not None:
                held_out = read_validation_data(data, self.needs_labels)
            x, y, sample_weight = self.batches(held_out, options)
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
        """Return the loss and the metrics on what `fit` takes; see `keras.Model.evaluate`, and `report`."""
        check_arguments(batch_size=batch_size, **kwargs)
        order = "given" if kwargs.get("steps") else "sorted"  # the first batches must not hold the shortest texts
        options = BatchOptions(batch_size, order, verbose=kwargs.get("verbose") != 0)
        x, y, sample_weight = self.batches(read_inputs(x, y, sample_weight), options)
        with expected_retracing():
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
        """Return all scores that suit the task, as `lmzoo evaluate` prints them; `print` shows them as tables.

        Args:
            x: texts in memory.
            y: labels, as for `fit`.
            batch_size: int.
            verbose: as for `keras.Model.evaluate`.
            errors: whether to add the tables "worst", the most confident mistakes, "by length", and "calibration" with
                the score `ece`, the expected calibration error (Guo et al., 2017).
            columns: adds scores by the values of columns, such as the source of each text: values by name.
            history: adds the table "learning curve": what `fit` returned.

        Returns:
            `scores` by name: the loss and metrics of `evaluate`, and scores of the answers, such as macro F1 or the F1
            of spans; `tables` by name, such as precision and recall by class, and the confusion matrix.

        Raises:
            TypeError: if `x` is not texts in memory.
            ValueError: as `evaluate`; for `errors` or `columns` if answers of the task are not right or wrong; for a
                column without exactly one value for each example, or with `errors` one of the name "length"; for a
                `history` that is not one.

        Example:

        ```python
        import lmzoo

        task = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
        print(task.report(["A fine film.", "A dull film."], ["good", "bad"], verbose=0))
        ```
        """
        if not isinstance(read_inputs(x), TextsInMemory):
            raise TypeError(f"A report needs texts in memory, got {type(x).__name__}: `evaluate` takes other data.")
        check_additions(x, errors, columns, history)
        measured = self.evaluate(x, y if self.needs_labels else None, batch_size, return_dict=True, verbose=verbose)
        found = self.compare([x], y, batch_size=batch_size, **measured)
        return with_errors(replace(found, scores={**measured, **found.scores}), x, errors, columns, history)

    def compare(self, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
        """Return the scores of the task's answers; none by default.

        Args:
            parts: parts of the examples, in their order.
            y: the labels of all examples.
            batch_size: int.
            **measured: the loss and metrics of `evaluate`.
        """
        return Report()

    def answers(self, *args: Any, **kwargs: Any) -> Any:
        """Return an answer to each example, in plain Python objects: the task's own method, such as `classify`.

        A subclass that overrides that method gives it this second name again: `answers = classify`.
        """
        raise NotImplementedError(f"A {type(self).__name__} gives no answers.")

    def predict(self, x: Inputs, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Return the model's outputs (logits) in the order of `x`, texts or token features; see `keras.Model.predict`.

        The default batch size is 32.
        """
        check_arguments(batch_size=batch_size, **kwargs)
        return predict(self, read_inputs(x), batch_size, **kwargs)

    def predict_batches(self, batches: Any, **kwargs: Any) -> Tensors:
        """Return the outputs for batches, one after another; see `keras.Model.predict`."""
        return super().predict(batches, **kwargs)

    def training_batches(
        self, x: Inputs, y: Labels | None = None, batch_size: int | None = None, seed: int = 0
    ) -> Batches:
        """Return the batches of `fit`, shuffled, for custom training loops: a `keras.utils.PyDataset`.

        Args:
            x: texts.
            y: labels, as for `fit`.
            batch_size: int, 32 by default.
            seed: int, of the order and of everything else that is random.

        Raises:
            TypeError: if `x` are not texts.
            ValueError: as `fit`.
        """
        inputs = read_inputs(x, y)
        batches = self.batches(inputs, BatchOptions(batch_size, "shuffle", (seed,), training=True))[0]
        if not isinstance(inputs, TextsInMemory) or not isinstance(batches, Batches):
            raise TypeError(f"`x` must be texts, got {type(x).__name__}.")
        return batches

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
        inputs = read_inputs(x, y, sample_weight)
        if isinstance(inputs, TokenFeatures):
            return x, y, sample_weight if class_weight is None else inputs.weigh(class_weight)
        examples = self.encode_examples(x, y, sample_weight)
        if class_weight is not None:
            examples = weigh_classes(examples, class_weight)
        lengths = examples.encoded.lengths
        rng = np.random.default_rng((0, step))
        batch = self.make_batch(examples, np.arange(len(lengths)), int(lengths.max(initial=1)), rng)
        return keras.utils.unpack_x_y_sample_weight(batch)

    # === Save, load and export ===

    def save(self, filepath: str | Path, overwrite: bool = True, **kwargs: Any) -> None:
        """Write a `.keras` file with weights, vocabulary, labels and optimizer state; see `keras.Model.save`.

        If writing fails, as on a full disk, an existing file stays as it was. Of several processes, only one should
        write.

        Raises:
            ValueError: if the path does not end in `.keras`.
            FileExistsError: if the file exists and may not be replaced.
        """
        check_path(filepath)
        if Path(filepath).suffix != ".keras":
            raise ValueError(f"Models are saved as `.keras` files, got {os.fspath(filepath)!r}.")
        if Path(filepath).expanduser().exists() and not overwrite:
            raise FileExistsError(f"{os.fspath(filepath)} exists; pass `overwrite=True` to replace it.")
        self._warn_of_merged_lora()
        # Keras makes an optimizer to compare with, and all processes take part in making variables.
        with atomic_file(filepath) as temporary, alone():
            super().save(temporary, **kwargs)

    @classmethod
    def load(cls, filepath: str | Path, compile: bool = True) -> Self:
        """Read a `.keras` file from a source that is not trusted.

        `keras.saving.load_model` reads the same files, but it unpacks them itself, before lmzoo is called: it accepts a
        small file that unpacks to gigabytes, and a load that fails can leave a folder in the temporary directory. Here
        the limits are those of all archives, and no folder is left.

        Args:
            filepath: path of a `.keras` file that `save` wrote.
            compile: whether to compile the task as it was when it was saved.

        Returns:
            The task.

        Raises:
            ValueError: if the file is damaged, holds another class than this one or unpacks to more than 64 MiB plus 10
                times its size; or as for `keras.saving.load_model`.
            OSError: if the file cannot be read or unpacked.

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
        """Write the vocabulary; Keras calls it when saving `.keras` files."""
        if self.preprocessor is not None:
            self.preprocessor.save_assets(directory)

    def load_assets(self, directory: str) -> None:
        """Read the vocabulary; Keras calls it when loading `.keras` files."""
        if self.preprocessor is not None:
            self.preprocessor.load_assets(directory)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments: the task's attributes of the same names."""
        config = {name: getattr(self, name) for name in constructor_arguments(type(self))}
        parts = {name: keras.saving.serialize_keras_object(config[name]) for name in ("backbone", "preprocessor")}
        if self.name == self.default_name:  # so that copies can be in one model
            config["name"] = None
        return {**config, **parts, "labels": None if self.labels is None else list(self.labels)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        """Build a task from `get_config`'s output without compiling it: Keras does that if the file says so."""
        parts = {name: keras.saving.deserialize_keras_object(config[name]) for name in ("backbone", "preprocessor")}
        task = cls(**{**config, **parts})
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
        **task_kwargs: Any,
    ) -> Self:
        """Build the task on a preset's backbone, with the preset's head if it has one that fits.

        Args:
            preset: a name from `lmzoo.list_presets()`, a local directory, `hf://org/name` or `kaggle://...`.
            load_weights: False for the architecture with random weights.
            dtype: dtype policy, such as `"mixed_bfloat16"`.
            dropout: rate inside the backbone instead of the preset's.
            sequence_length: tokens of the longest sequence, instead of the preset's.
            labels: names of the classes.
            preprocessor: instead of the preset's.
            family: name of the family, such as "bert", for a checkpoint that does not tell it.
            **task_kwargs: of the task's constructor, such as `num_classes` or `name`.

        Returns:
            The task.

        Raises:
            ValueError: for an unknown preset (similar names are suggested), a changed or missing file, or a
                `sequence_length` above the model's.

        Example:

        ```python
        import lmzoo

        classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
        ```
        """
        if labels is not None:
            task_kwargs["labels"] = labels
        overrides = {key: value for key, value in (("dtype", dtype), ("dropout", dropout)) if value is not None}
        return load_task(
            preset,
            cls,
            Backbone,
            load_weights=load_weights,
            backbone_overrides=overrides,
            sequence_length=sequence_length,
            preprocessor=preprocessor,
            family=family,
            **task_kwargs,
        )

    def copy_with(self, **changes: Any) -> Self:
        """Return a copy of the task with the same weights, whose backbone has other arguments, such as another `dtype`.

        It is compiled with the defaults. Of a task with LoRA its weights have the updates added, and all of them are
        trained; to weights of int8 updates are not added, but copied.

        Args:
            **changes: arguments of the backbone's constructor that do not change the shapes of its weights.

        Example:

        ```python
        import lmzoo

        classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", num_classes=2)
        small = classifier.copy_with(dtype="bfloat16")
        ```
        """
        backbone = type(self.backbone).from_config({**self.backbone.get_config(), **changes})
        copy = type(self)(**{**self.get_config(), "backbone": backbone, "preprocessor": self.preprocessor})
        copy.set_weights([keras.ops.convert_to_numpy(value) for _, value in merged_weights(self)])
        return copy

    def resize_token_embeddings(self, size: int, seed: int = 0) -> Self:
        """Return a copy of the task with embeddings for `size` tokens, such as for those added to its tokenizer.

        The head keeps its weights. Weights with an axis of tokens, such as the bias of a masked language model, get new
        entries as the embeddings do: see `Backbone.resize_token_embeddings`. The copy is compiled with the defaults.

        Args:
            size: number of tokens; if it is lower than before, the last rows are left out.
            seed: seed of the new rows.

        Raises:
            ValueError: as for `Backbone.resize_token_embeddings`, or if the tokenizer has another number of tokens.

        Example:

        ```python
        import lmzoo

        model = lmzoo.models.MaskedLM.from_preset("bert_nano_en_uncased")
        model.preprocessor.tokenizer.add_tokens(["mRNA"])  # 1
        model = model.resize_token_embeddings(model.preprocessor.tokenizer.vocabulary_size)
        ```
        """
        backbone = self.backbone.resize_token_embeddings(size, seed)
        resized = type(self)(**{**self.get_config(), "backbone": backbone, "preprocessor": self.preprocessor})
        copy_weights(self, resized, seed)
        return resized

    def save_to_preset(self, directory: str | Path, overwrite: bool = True) -> None:
        """Write backbone, head, labels and vocabulary as a preset.

        Args:
            directory: path of the preset. If writing fails, an existing one stays as it was.
            overwrite: whether an existing directory may be replaced.
        """
        self._warn_of_merged_lora()
        save_preset(self, directory, overwrite, self.preprocessor)

    def _warn_of_merged_lora(self) -> None:
        adapted = [layer for layer in sublayers(self.backbone) if getattr(layer, "lora_enabled", False)]
        if not all(map(stores_updates, adapted)):
            warnings.warn(
                "The file holds the weights with LoRA's updates added: a model loaded from it predicts the same, but "
                "all of its weights are trained until `backbone.enable_lora` is called again.",
                stacklevel=3,
            )

    def export(self, path: str | Path, verbose: bool = True, dtype: Literal["int8"] | None = None) -> None:
        """Write a TensorFlow SavedModel that takes strings, for TensorFlow Serving.

        `serving_default` takes `text`, a string tensor (n,); the signature `pair` takes `text` and `text_pair`;
        `tokens` takes the token features. All return a dict of named tensors: the task's answers and, for strings,
        `truncated`, bool (n,). The vocabulary is inside. Loading needs `tensorflow` and `tensorflow_text`, but not
        lmzoo.

        A path that ends in `.onnx` or `.tflite` gets one file for ONNX Runtime or LiteRT: token features in, the
        outputs of `predict` out under the name `logits` (`TextEmbedder`: `embedding`), without tokenizer and labels.
        ONNX needs `pip install 'lmzoo[onnx]'`, both need float32. With `dtype="int8"` an .onnx file takes a quarter of
        the space, and ONNX Runtime multiplies integers: the outputs change a little, so measure them.

        On other backends a child process exports, for which TensorFlow must be installed.

        Args:
            path: directory of the model, for TensorFlow Serving `<name>/<integer version>`, or a file. An existing one
                is replaced when the new one is complete, and stays as it was if writing fails.
            verbose: whether to print what was written.
            dtype: "int8" for an .onnx file with weights of int8, and activations that are rounded to int8; None for
                the dtype of the weights.

        Raises:
            ImportError: if a package that writes the format is not installed.
            NotFiniteError: if weights are NaN or infinite.
            RuntimeError: if the process that exports for another backend fails.
            ValueError: if the task has no preprocessor or serves nothing, if the path is a folder that holds versions
                or has another suffix, or if the model uses ops that the format's runtime does not have.
        """
        export_task(self, path, verbose, dtype)

    def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the exported model's answers to token features, in TensorFlow ops, by `served_outputs`."""
        raise NotImplementedError(f"{type(self).__name__} must define `serve`.")

    def signatures(self) -> Signatures:
        """Return what is exported.

        Returns:
            A `tf.Module` that holds the tables used by the functions, and the functions by name of signature:
            `tf.function`s of named tensors that return a dict of tensors.
        """
        return text_signatures(self)


def _joined(metrics: Any, more: Any) -> Metrics:
    """Return both lists of metrics, or both dicts of lists, as one."""
    for given in (metrics, more):
        if not isinstance(given, (list, tuple, dict, type(None))):
            raise TypeError(f'`metrics` must be a list, such as ["accuracy"], or a dict of lists, got {given!r:.60}.')
    if isinstance(metrics, dict) or isinstance(more, dict):
        parts = [metrics or {}, more or {}]
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: [m for part in parts for m in keras.tree.flatten(part.get(name, []))] for name in names}
    return [*(metrics or []), *(more or [])]
