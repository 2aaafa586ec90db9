"""The base of all tasks: models that take strings, trained and saved like any Keras model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from lmzoo.common.tensor_types import Features, Tensors
from lmzoo.evaluation.reports import Report
from lmzoo.families.backbone import Backbone
from lmzoo.registry.family import Family, family_of
from lmzoo.registry.head_kinds import HasHead
from lmzoo.tasks.base.arguments import callback_list, check_arguments
from lmzoo.tasks.base.compilation import CompiledTask, expected_retracing
from lmzoo.tasks.base.encoding import EncodingTask
from lmzoo.tasks.base.examples import BatchOptions, Inputs, Labels, Texts, TrainingData, Weights
from lmzoo.tasks.base.prediction import predict
from lmzoo.tasks.base.preprocessor_checks import fit_preprocessor
from lmzoo.tasks.base.reports import check_additions, with_errors
from lmzoo.tasks.base.saving import SavedTask
from lmzoo.tasks.inputs import StreamedExamples, TaskInputs, TextsInMemory, errors_in, read_inputs, read_validation_data
from lmzoo.text import Preprocessor
from lmzoo.text.batching import Batches
from lmzoo.text.keras_input import keras_input
from lmzoo.training.training_run import TrainingRun, find_checkpoint


class Task(HasHead, EncodingTask, CompiledTask, SavedTask):
    """A backbone, a head and a preprocessor in one Functional model.

    `fit`, `evaluate` and `predict` take raw text (a list or array of strings, pairs as a tuple of two lists or a list
    of 2-tuples), a `tf.data.Dataset` of strings, or what Keras takes: dicts of token features. `fit` and `evaluate`
    also take tables. Lists and arrays of text are tokenized once and batched by length; a dataset is tokenized as it
    streams.

    A subclass builds the head in its constructor, which ends with `self.compile()`, and defines what differs from the
    defaults:

    * training: `default_loss`, `default_metrics` and `default_optimizer`; `uses_pooler` or `unused_variables`, weights
      that its loss does not reach;
    * examples: `encode_labels`; for other inputs than texts and pairs also `encode_inputs`, `encode_examples`,
      `features` and `make_batch`; `learns_from` if there are no labels; `batches` and `split_validation` if batches
      are not made of independent examples;
    * outputs: `per_token`, `independent_rows`;
    * the command line: `commands`, `input_names`, `arguments_for`;
    * answers: a method of its own, whose name is `verb`; `serve`, `served_outputs` and, for other strings than `text`
      and `text_pair`, `signatures`.

    Args:
        backbone: `lmzoo.models.Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None to work on token features only.
        inputs: symbolic inputs, a dict.
        outputs: symbolic outputs.
        labels: names of the classes, or None.
        name: name of the model; by default that of its class, numbered if there are several.

    Example: see `lmzoo.models.TextClassifier`.
    """

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
        """Whether the task works on backbones of a family; by default on those that read one sequence."""
        return not family.backbone.reads_source

    @classmethod
    def arguments_for(cls, y: Any) -> dict[str, Any]:
        """Return arguments of the constructor that the labels of the examples suggest, for the command line."""
        return {}

    @property
    def family(self) -> Family:
        """The record of the backbone's family."""
        return family_of(self.backbone)

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
        self.check_strategy()
        if self.optimizer is None:
            raise ValueError("This model was loaded without its optimizer: call `compile()` before `fit`.")
        inputs = read_inputs(x, y, sample_weight)
        if class_weight is not None:
            if isinstance(inputs, StreamedExamples):
                raise ValueError("A stream takes no `class_weight`: pass texts in memory, such as a list.")
            class_weight = self.encode_class_weight(class_weight)
        if validation_data is not None:
            with errors_in("`validation_data`"):
                validation_data = self._validation_batches(
                    read_validation_data(validation_data, self.needs_labels), batch_size, verbose, kwargs
                )
        elif validation_split:
            inputs, held_out = self.split_validation(inputs, validation_split)
            validation_data = self._validation_batches(held_out, batch_size, verbose, kwargs)
        options = BatchOptions(
            batch_size,
            "shuffle" if shuffle else "given",
            # A second `fit` has another order; the same model always has the same.
            (seed, int(keras.ops.convert_to_numpy(self.optimizer.iterations))),
            training=True,
            steps=steps_per_epoch,
            verbose=verbose != 0,
            class_weight=class_weight if self.labels_words else None,
        )
        class_weight = None if self.labels_words else class_weight  # Keras' weights are those of examples
        x, y, sample_weight = self.batches(inputs, options)
        callbacks = callback_list(callbacks)
        if class_weight is not None and find_checkpoint(callbacks):
            raise ValueError("A run that can be resumed takes no `class_weight`: pass `sample_weight`.")
        run = TrainingRun.begin(self, x, epochs, steps_per_epoch, initial_epoch, callbacks)
        with run.stoppable():
            return super().fit(
                x=keras_input(x, run.first_step),
                y=y,
                epochs=epochs,
                verbose=verbose,
                callbacks=run.callbacks,
                validation_data=validation_data,
                shuffle=False,  # only arrays could be shuffled by Keras, and those are batches by now
                class_weight=class_weight,
                sample_weight=sample_weight,
                initial_epoch=run.initial_epoch,
                steps_per_epoch=run.steps_per_epoch,
                **kwargs,
            )

    def _validation_batches(
        self, inputs: TaskInputs, batch_size: int | None, verbose: bool | int | str, kwargs: Mapping[str, Any]
    ) -> TrainingData:
        """Return `validation_data` for Keras."""
        order = "given" if kwargs.get("validation_steps") else "sorted"
        options = BatchOptions(kwargs.get("validation_batch_size") or batch_size, order, verbose=verbose != 0)
        x, y, sample_weight = self.batches(inputs, options)
        return keras_input(x), y, sample_weight

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
        check_additions(self, x, errors, columns, history)
        measured = self.evaluate(x, y if self.needs_labels else None, batch_size, return_dict=True, verbose=verbose)
        found = self.compare([x], y, batch_size=batch_size, **measured)
        return with_errors(replace(found, scores={**measured, **found.scores}), x, errors, columns, history)

    def compare(self, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
        """The scores of the task's answers; none by default.

        Args:
            parts: parts of the examples, in their order.
            y: the labels of all examples.
            batch_size: int.
            **measured: the loss and metrics of `evaluate`.
        """
        return Report()

    def predict(self, x: Inputs, batch_size: int | None = None, **kwargs: Any) -> Any:
        """The model's outputs (logits) in the order of `x`, texts or token features; see `keras.Model.predict`.

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
        """The batches of `fit`, shuffled, for custom training loops: a `keras.utils.PyDataset`.

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

    # === Data, for subclasses to define ===

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
