"""The base of all tasks: models that take strings, trained and saved like any Keras model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from lmzoo.common.tensor_types import Features, Tensors
from lmzoo.common.tensorflow_kernels import warn_if_onednn_is_off
from lmzoo.evaluation.reports import Report
from lmzoo.families.backbone import Backbone
from lmzoo.parallel.processes import check_same, several_processes
from lmzoo.registry.family import Family, family_of
from lmzoo.registry.head_kinds import HasHead
from lmzoo.tasks.base.arguments import callback_list, check_arguments
from lmzoo.tasks.base.compilation import CompiledTask, expected_retracing
from lmzoo.tasks.base.data_adapter import errors_in, identity_of, make_batches, split_features, steps_in
from lmzoo.tasks.base.encoding import EncodingTask
from lmzoo.tasks.base.examples import BUFFER, BatchOptions, Inputs, Labels, Texts, TrainingData, Weights
from lmzoo.tasks.base.input_kinds import fit_preprocessor, is_raw
from lmzoo.tasks.base.prediction import predict
from lmzoo.tasks.base.reports import check_additions, with_errors
from lmzoo.tasks.base.row_streams import RowStream
from lmzoo.tasks.base.saving import SavedTask
from lmzoo.tasks.base.tables import examples_of, is_table, named_columns
from lmzoo.text import Preprocessor
from lmzoo.text.batching import Batches
from lmzoo.text.buffered_batches import BufferedBatches
from lmzoo.text.keras_input import keras_input
from lmzoo.training import ResumableCheckpoint
from lmzoo.training.divergence import StopOnDivergence


class Task(HasHead, EncodingTask, CompiledTask, SavedTask):
    """A backbone, a head and a preprocessor in one Functional model.

    `fit`, `evaluate` and `predict` take raw text (a list or array of strings, pairs as a tuple of two lists or a list
    of 2-tuples), a `tf.data.Dataset` of strings, or what Keras takes: dicts of token features. `fit` and `evaluate`
    also take tables. Lists and arrays of text are tokenized once and batched by length; a dataset is tokenized as it
    streams.

    A subclass builds the head in its constructor and defines what differs from the defaults:

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
        self._compiles_itself = True
        backbone.set_compiled_by_xla(self.jit_compile)  # until `compile` says otherwise

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
        text: str | tuple[str, str] | None = None,
        label: str | None = None,
        shuffle_buffer: int = BUFFER,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Trains the model; see `keras.Model.fit`.

        Args:
            x: texts, a `tf.data.Dataset` of them with labels, token features, or a table: a DataFrame of pandas or
                polars, a table of pyarrow, a dataset of Hugging Face. A table may be larger than memory: a
                `lmzoo.data.readers.TableStream` of files, an `IterableDataset` of Hugging Face and, with `text`,
                anything else that iterates over rows, each a dict, such as a dataset of Grain or `tf.data`.
            y: labels: integers, or strings if the task has `labels`.
            batch_size: int, by default 32 (`BidirectionalLM`: 128).
            epochs: int, epoch to stop at.
            verbose: as in Keras.
            callbacks: as in Keras.
            validation_split: share of the examples, the last ones, to hold out.
            validation_data: `(x, y)` or `(x, y, sample_weight)`, or a dataset; `x` alone for a task without labels; or
                a table with the same columns.
            shuffle: whether each epoch has a new order; False keeps the given one.
            class_weight: weight of each class, by number or by name.
            sample_weight: float array (n,); for `TokenClassifier` also lists, the weights of each text's words.
            initial_epoch: int, epoch to start at.
            steps_per_epoch: int, batches of an epoch; all by default. Needed for a table on demand that does not know
                its length.
            seed: int, of the order of the examples and of masking.
            text: column of a table that holds the texts, by default "text"; a tuple of two columns for pairs.
            label: column of a table that holds the labels; by default "label" if the task needs labels.
            shuffle_buffer: int, examples of a table on demand that are in memory at once, to be shuffled and batched by
                length; fewer if they have more than 64 million characters.
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
            shuffle_buffer=shuffle_buffer,
            **kwargs,
        )
        self.check_strategy()
        if keras.backend.backend() == "tensorflow":
            warn_if_onednn_is_off()
        if self.optimizer is None:
            raise ValueError("This model was loaded without its optimizer: call `compile()` before `fit`.")
        if is_table(validation_data, text, label):
            with errors_in("`validation_data`"):
                validation_data = examples_of(validation_data, None, text, label, self.needs_labels)
        x, y = examples_of(x, y, text, label, self.needs_labels)
        if class_weight is not None:
            if isinstance(x, RowStream):
                raise ValueError("Examples that are read on demand take no `class_weight`.")
            class_weight = self.encode_class_weight(class_weight)
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = self.split_validation(x, y, sample_weight, validation_split)
            validation_split = validation_split if validation_data is None else 0.0
        options = BatchOptions(
            batch_size,
            "shuffle" if shuffle else "given",
            # A second `fit` has another order; the same model always has the same.
            (seed, int(keras.ops.convert_to_numpy(self.optimizer.iterations))),
            training=True,
            steps=steps_per_epoch,
            verbose=verbose != 0,
            buffer=shuffle_buffer,
            class_weight=class_weight if self.labels_words else None,
        )
        class_weight = None if self.labels_words else class_weight  # Keras' weights are those of examples
        if validation_data is not None:
            validation_data = self._validation_batches(validation_data, batch_size, verbose, kwargs)
        x, y, sample_weight = self.batches(x, y, sample_weight, options)
        callbacks = callback_list(callbacks)
        steps = steps_per_epoch or steps_in(x)
        if several_processes():
            check_same(steps=steps, epochs=epochs, **identity_of(x))
        self.build_optimizer()
        start, resumed, done = None, False, (steps or 0) * initial_epoch
        checkpoint = next((c for c in callbacks if isinstance(c, ResumableCheckpoint)), None)
        if checkpoint is not None:
            if class_weight is not None:
                raise ValueError("A run that can be resumed takes no `class_weight`: pass `sample_weight`.")
            if steps is None:
                raise ValueError(
                    "A run that can be resumed needs `steps_per_epoch`, since its data has no known length."
                )
            start, resumed = checkpoint.restore(self, x, epochs, steps, done)
            done, initial_epoch, steps_per_epoch = start, start // steps, steps
            others = [c for c in callbacks if c is not checkpoint]
            callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=checkpoint.reopen), *others, checkpoint]
        elif isinstance(x, BufferedBatches):
            start, steps_per_epoch = done, steps
        elif isinstance(x, Batches):
            callbacks.append(keras.callbacks.LambdaCallback(on_epoch_begin=x.begin_epoch))
        if not resumed:
            self.start_schedule(steps, epochs, done, callbacks)
        if not any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks):
            callbacks.insert(0, StopOnDivergence())  # before those that save
        with contextlib.nullcontext() if checkpoint is None else checkpoint.listening():
            return super().fit(
                x=keras_input(x, start),
                y=y,
                epochs=epochs,
                verbose=verbose,
                callbacks=callbacks,
                validation_split=validation_split,
                validation_data=validation_data,
                shuffle=False,  # only arrays could be shuffled by Keras, and those are batches by now
                class_weight=class_weight,
                sample_weight=sample_weight,
                initial_epoch=initial_epoch,
                steps_per_epoch=steps_per_epoch,
                **kwargs,
            )

    def _validation_batches(
        self, data: Any, batch_size: int | None, verbose: bool | int | str, kwargs: Mapping[str, Any]
    ) -> TrainingData:
        """`validation_data` for Keras."""
        alone = not isinstance(data, tuple) and not (isinstance(data, list) and self.needs_labels)
        if not alone and not 1 <= len(data) <= 3:
            raise ValueError(f"`validation_data` must be (x, y) or (x, y, sample_weight), got {len(data)} entries.")
        x, y, sample_weight = (data, None, None) if alone else (*data, None, None)[:3]
        order = "given" if kwargs.get("validation_steps") else "sorted"
        options = BatchOptions(kwargs.get("validation_batch_size") or batch_size, order, verbose=verbose != 0)
        with errors_in("`validation_data`"):
            x, y, sample_weight = self.batches(x, y, sample_weight, options)
        return keras_input(x), y, sample_weight

    # === Evaluate and predict ===

    def evaluate(
        self,
        x: Inputs | None = None,
        y: Labels | None = None,
        batch_size: int | None = None,
        sample_weight: Weights | None = None,
        text: str | tuple[str, str] | None = None,
        label: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Loss and metrics; takes what `fit` takes, tables included. See `keras.Model.evaluate`, and `report`."""
        check_arguments(batch_size=batch_size, **kwargs)
        x, y = examples_of(x, y, text, label, self.needs_labels)
        order = "given" if kwargs.get("steps") else "sorted"  # the first batches must not hold the shortest texts
        options = BatchOptions(batch_size, order, verbose=kwargs.get("verbose") != 0)
        x, y, sample_weight = self.batches(x, y, sample_weight, options)
        with expected_retracing():
            return super().evaluate(keras_input(x), y, sample_weight=sample_weight, **kwargs)

    def report(
        self,
        x: Inputs,
        y: Labels | None = None,
        batch_size: int = 32,
        text: str | tuple[str, str] | None = None,
        label: str | None = None,
        verbose: bool | int | str = "auto",
        errors: bool = False,
        columns: Sequence[str] | Mapping[str, Sequence[Any]] | None = None,
        history: Any = None,
    ) -> Report:
        """All scores that suit the task, as `lmzoo evaluate` prints them; `print` shows them as tables.

        Args:
            x: texts, or a table as for `fit`.
            y: labels, as for `fit`.
            batch_size: int.
            text: see `fit`.
            label: see `fit`.
            verbose: as for `keras.Model.evaluate`.
            errors: whether to add the tables "worst", the most confident mistakes, "by length", and "calibration" with
                the score `ece`, the expected calibration error (Guo et al., 2017).
            columns: adds scores by the values of columns: names of columns of the table, or values by name.
            history: adds the table "learning curve": what `fit` returned.

        Returns:
            `scores` by name: the loss and metrics of `evaluate`, and scores of the answers, such as macro F1 or the F1
            of spans; `tables` by name, such as precision and recall by class, and the confusion matrix.

        Raises:
            TypeError: if `x` is neither texts nor a table.
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
        columns = named_columns(x, columns)
        x, y = examples_of(x, y, text, label, self.needs_labels)
        if not is_raw(x):
            raise TypeError(f"A report needs texts or a table, got {type(x).__name__}: `evaluate` takes other data.")
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
        self.compile_by_default()
        return predict(self, super().predict, x, batch_size, **kwargs)

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
        found = self.batches(x, y, None, BatchOptions(batch_size, "shuffle", (seed,), training=True))[0]
        if isinstance(x, dict) or not isinstance(found, Batches):
            raise TypeError(f"`x` must be texts, got {type(x).__name__}.")
        return found

    # === Data, for subclasses to define ===

    def batches(
        self, x: Inputs, y: Labels | None, sample_weight: Weights | None, options: BatchOptions
    ) -> TrainingData:
        """The data of `fit` and `evaluate`: `(x, y, sample_weight)` as Keras takes them, from what the user passed.

        By default texts become batches of examples of similar length, which hold labels and weights as well.
        """
        return make_batches(self, x, y, sample_weight, options)

    def split_validation(
        self, x: Inputs, y: Labels | None, sample_weight: Weights | None, share: float
    ) -> tuple[TrainingData, tuple[Any, ...] | None]:
        """The examples to train on, `(x, y, sample_weight)`, and the last `share` of them to validate on.

        None instead of the latter leaves the rest to Keras, which refuses whatever else there is.
        """
        if isinstance(x, RowStream):
            raise ValueError("`validation_split` needs examples in memory: pass `validation_data` instead.")
        if isinstance(x, dict):
            return split_features(self, x, y, sample_weight, share)
        if not is_raw(x):
            return (x, y, sample_weight), None
        return self.encode_examples(x, y, sample_weight).split(share)
