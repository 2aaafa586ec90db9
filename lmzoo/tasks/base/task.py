"""The base of all task models: strings in, trained and saved like any Keras model."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from lmzoo.families.backbone import Backbone
from lmzoo.family import Family, family_of
from lmzoo.head_kinds import HasHead
from lmzoo.tasks.base.compilation import CompiledTask
from lmzoo.tasks.base.data_adapter import (
    BATCH_SIZE,
    as_array,
    check_features,
    expected_retracing,
    is_batched,
    make_batches,
    predict_encoded,
    prediction_stream,
    steps_in,
    texts_of_stream,
)
from lmzoo.tasks.base.examples import BatchOptions, Examples
from lmzoo.tasks.base.input_kinds import check_preprocessor, is_raw, is_text_stream, split_segments
from lmzoo.tasks.base.saving import SavedTask
from lmzoo.text import Encoded, Preprocessor
from lmzoo.text.batching import Batches, keras_input
from lmzoo.training import ResumableCheckpoint


class Task(HasHead, CompiledTask, SavedTask):
    """A backbone, a head and a preprocessor in one Functional model.

    `fit`, `evaluate` and `predict` take raw text (a list or array of strings, pairs as a tuple of two lists or a list
    of 2-tuples), a `tf.data.Dataset` of strings, or what Keras takes: dicts of token features. Lists and arrays of text
    are tokenised once and batched by length; a dataset is tokenised as it streams.

    A subclass builds the head in its constructor and says the following, and no more than it has to:

    * what it is trained with: `default_loss`, `default_metrics` and, if need be, `default_optimizer`; `uses_pooler` or
      `unused_variables`, weights that its loss does not reach;
    * what its examples are: `encode_labels`; for other inputs than texts and pairs also `encode_inputs`,
      `encode_examples`, `features` and `make_batch`; `needs_labels` and `learns_from`; `batches` and `split_validation`
      if they do not come from examples one by one;
    * what its outputs are: `per_token`, `labels_words`, `independent_rows`;
    * what it answers: a method of its own, whose name is `verb`; `serve`, `served_outputs` and, for other strings than
      `text` and `text_pair`, `signatures`.

    Args:
        backbone: `lmzoo.models.Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None to work on token features only.
        inputs: symbolic inputs, a dict.
        outputs: symbolic outputs.
        labels: names of the classes, or None.
        name: name of the model.
    """

    needs_labels: bool = True
    learns_from: ClassVar[str] = "texts"  # and nothing else, where it needs no labels
    independent_rows: ClassVar[bool] = True  # whether Keras may shuffle the sequences of token features
    per_token: ClassVar[bool] = False  # whether the outputs' second axis is that of the tokens
    labels_words: ClassVar[bool] = False  # whether an example has a label for each of its words

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None,
        inputs: dict[str, Any],
        outputs: Any,
        labels: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        if preprocessor is not None:
            check_preprocessor(backbone, preprocessor)
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.labels = None if labels is None else tuple(labels)
        self.dtype_policy = backbone.dtype_policy
        self._compiles_itself = True

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Whether the task works on backbones of a family."""
        return True

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
    def family(self) -> Family:
        """The record of the backbone's family."""
        return family_of(self.backbone)

    # === Fit ===

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: dict[Any, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Trains the model; see `keras.Model.fit`.

        Args:
            x: texts, a `tf.data.Dataset` of them with labels, or token features.
            y: labels: integers, or strings if the task has `labels`.
            batch_size: int, by default 32 (`BidirectionalLM`: 128).
            epochs: int, epoch to stop at.
            verbose: as in Keras.
            callbacks: as in Keras.
            validation_split: share of the examples, the last ones, to hold out.
            validation_data: `(x, y)` or `(x, y, sample_weight)`, or a dataset; `x` alone for a task without labels.
            shuffle: whether to draw a new order each epoch; False keeps the order given.
            class_weight: weight of each class, by number or by name.
            sample_weight: float array (n,).
            initial_epoch: int, epoch to start at.
            steps_per_epoch: int, batches of an epoch; all by default.
            seed: int, of the order of the examples and of masking.
            **kwargs: of `keras.Model.fit`.

        Returns:
            Keras' history of losses and metrics.

        Raises:
            TypeError: naming the position of an entry that is not text.
            ValueError: for labels that the model does not have, before the first step.
        """
        if is_raw(x):
            self.check_unlabelled(y)
        if self.optimizer is None:
            raise ValueError("This model was loaded without its optimizer: call `compile()` before `fit`.")
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = self.split_validation(x, y, sample_weight, validation_split)
            validation_split = validation_split if validation_data is None else 0.0
        options = BatchOptions(
            batch_size,
            "shuffle" if shuffle else "given",
            # A later fit draws anew; the same model draws the same.
            (seed, int(keras.ops.convert_to_numpy(self.optimizer.iterations))),
            training=True,
            steps=steps_per_epoch,
            verbose=verbose != 0,
        )
        x, y, sample_weight = self.batches(x, y, sample_weight, options)
        if validation_data is not None:
            validation_data = self._validation_batches(validation_data, batch_size, verbose, kwargs)
        if class_weight is not None:
            class_weight = self.encode_class_weight(class_weight)
        batch_size = batch_size or BATCH_SIZE
        callbacks = _as_list(callbacks)
        steps = steps_per_epoch or steps_in(x, batch_size, validation_split)
        if not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        start, resumed, done = None, False, (steps or 0) * initial_epoch
        checkpoint = next((c for c in callbacks if isinstance(c, ResumableCheckpoint)), None)
        if checkpoint is not None:
            if class_weight is not None:
                raise ValueError("A run that can be resumed takes no `class_weight`: pass `sample_weight`.")
            if steps is None:
                raise ValueError("A run that can be resumed needs `steps_per_epoch`, since its data have no length.")
            start, resumed = checkpoint.restore(self, x, epochs, steps, done)
            done, initial_epoch, steps_per_epoch = start, start // steps, steps
            others = [c for c in callbacks if c is not checkpoint]
            callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=checkpoint.reopen), *others, checkpoint]
        elif isinstance(x, Batches):
            callbacks.append(keras.callbacks.LambdaCallback(on_epoch_begin=x.begin_epoch))
        if not resumed:
            self.start_schedule(steps, epochs, done, callbacks)
        with contextlib.nullcontext() if checkpoint is None else checkpoint.listening():
            return super().fit(
                x=keras_input(x, start),
                y=y,
                batch_size=None if is_batched(x) else batch_size,
                epochs=epochs,
                verbose=verbose,
                callbacks=callbacks,
                validation_split=validation_split,
                validation_data=validation_data,
                shuffle=shuffle and self.independent_rows and not is_batched(x),
                class_weight=class_weight,
                sample_weight=sample_weight,
                initial_epoch=initial_epoch,
                steps_per_epoch=steps_per_epoch,
                **kwargs,
            )

    def _validation_batches(self, data: Any, batch_size: int | None, verbose: Any, kwargs: dict[str, Any]) -> Any:
        """`validation_data` for Keras."""
        alone = not isinstance(data, tuple) and not (isinstance(data, list) and self.needs_labels)
        x, y, sample_weight = (data, None, None) if alone else (*data, None, None)[:3]
        order = "given" if kwargs.get("validation_steps") else "sorted"
        options = BatchOptions(batch_size, order, verbose=verbose != 0)
        try:
            x, y, sample_weight = self.batches(x, y, sample_weight, options)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError  # some of their kinds take no message
            raise kind(f"In `validation_data`: {error}") from error
        return keras_input(x), y, sample_weight

    # === Evaluate and predict ===

    def evaluate(
        self, x: Any = None, y: Any = None, batch_size: int | None = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """Loss and metrics; takes what `fit` takes. See `keras.Model.evaluate`."""
        order = "given" if kwargs.get("steps") else "sorted"  # some of the batches must not be the shortest texts
        options = BatchOptions(batch_size, order, verbose=kwargs.get("verbose") != 0)
        x, y, sample_weight = self.batches(x, y, sample_weight, options)
        batch_size = None if is_batched(x) else batch_size
        with expected_retracing():
            return super().evaluate(keras_input(x), y, batch_size=batch_size, sample_weight=sample_weight, **kwargs)

    def predict(self, x: Any, batch_size: int | None = None, **kwargs: Any) -> Any:
        """The model's outputs (logits) in the order of `x`; see `keras.Model.predict`.

        Args:
            x: texts, a `tf.data.Dataset` of them, or token features.
            batch_size: int, 32 by default.
            **kwargs: of `keras.Model.predict`.
        """
        self.compile_by_default()
        if is_text_stream(x):
            # Outputs of open shapes are padded over all examples, and so all have to be there.
            if all(None not in x.shape[1:] for x in keras.tree.flatten(self.output)):
                with expected_retracing():
                    return super().predict(prediction_stream(self, x, batch_size or BATCH_SIZE), **kwargs)
            x = texts_of_stream(self, x)
        if not is_raw(x):
            check_features(self, x)
            return super().predict(x, batch_size=batch_size, **kwargs)
        encoded = self.encode_inputs(x)
        if (steps := kwargs.pop("steps", None)) is not None:
            encoded = encoded[: steps * (batch_size or BATCH_SIZE)]
        if not len(encoded):
            return keras.tree.map_structure(
                lambda x: np.zeros((0, *(d or 0 for d in x.shape[1:])), "float32"), self.output
            )
        with expected_retracing():
            return predict_encoded(self, super().predict, encoded, batch_size or BATCH_SIZE, **kwargs)

    # === What subclasses say about their examples ===

    def encode_inputs(self, x: Any) -> Any:
        """Texts as packed rows of token ids, or another kind of `lmzoo.text.Encoded`.

        Args:
            x: texts or pairs of texts; rows that are encoded already are returned as they are.

        Raises:
            TypeError: naming the position of an entry that is not text.
            ValueError: if there is no preprocessor.
        """
        self.check_takes_text()
        if isinstance(x, Encoded):
            return x
        preprocessor = self.text_preprocessor
        return preprocessor.encode(*split_segments(x, preprocessor.tokenizer.takes_words))

    def check_takes_text(self) -> None:
        """Checks that there is a preprocessor, and that what it makes fits the model.

        Raises:
            ValueError: if not.
        """
        check_preprocessor(self.backbone, self.text_preprocessor)  # again: its `sequence_length` can be set

    def encode_examples(self, x: Any, y: Any = None, sample_weight: Any = None) -> Examples:
        """Texts, labels and weights as `fit` got them, encoded and checked: as many of each.

        Args:
            x: as for `encode_inputs`.
            y: labels, or None.
            sample_weight: float array (n,), or None.

        Raises:
            TypeError: naming the position of an entry that is not text.
            ValueError: for labels that are missing, too few or not the model's.
        """
        examples = Examples(self.encode_inputs(x), self.encode_labels(y), as_array(sample_weight))
        self.check_counts(len(examples.encoded), examples.labels, examples.weights)
        return examples

    def check_unlabelled(self, y: Any) -> None:
        """Checks that there are no labels where the task takes none.

        Raises:
            ValueError: if there are.
        """
        if y is not None and not self.needs_labels:
            raise ValueError(f"{type(self).__name__} learns from {self.learns_from} alone: it takes no labels (`y`).")

    def check_counts(self, count: int, y: Any, sample_weight: Any) -> None:
        """Checks that there are labels, if the task needs them, and weights, if any, for `count` examples.

        Raises:
            ValueError: if not.
        """
        if y is None and self.needs_labels:
            raise ValueError(f"{type(self).__name__} needs a label for each text: pass `y`.")
        for what, values in (("labels", y), ("weights", sample_weight)):
            if values is not None and len(values) != count:
                raise ValueError(f"Got {count} texts but {len(values)} {what}.")

    def encode_labels(self, y: Any) -> Any:
        """Labels as the array that the loss takes, each checked to be one; None stays None."""
        return as_array(y)

    def encode_class_weight(self, class_weight: Any) -> dict[int, float]:
        """Weights of classes, each by its number.

        Raises:
            ValueError: if an example has no one class.
        """
        raise ValueError(
            f"{type(self).__name__} has no one class of a text that `class_weight` could weight: pass `sample_weight`."
        )

    def batches(self, x: Any, y: Any, sample_weight: Any, options: BatchOptions) -> tuple[Any, Any, Any]:
        """Where the data of `fit` and `evaluate` come from: `(x, y, sample_weight)` as Keras takes them.

        By default text becomes batches of examples of similar length, which hold labels and weights as well.

        Args:
            x: as the user passed it.
            y: as the user passed it.
            sample_weight: as the user passed it.
            options: how the batches are to be made.
        """
        return make_batches(self, x, y, sample_weight, options)

    def split_validation(self, x: Any, y: Any, sample_weight: Any, share: float) -> tuple[tuple[Any, Any, Any], Any]:
        """The examples to train on, `(x, y, sample_weight)`, and those of the last `share` of them, or None.

        None leaves it to Keras, which parts arrays of token features.
        """
        if not is_raw(x):
            return (x, y, sample_weight), None
        return self.encode_examples(x, y, sample_weight).split(share)

    def make_batch(self, examples: Examples, rows: np.ndarray, width: int, rng: np.random.Generator) -> tuple[Any, ...]:
        """A batch to train on or to evaluate.

        Args:
            examples: all of them.
            rows: int array (b,), which ones.
            width: int, padded length.
            rng: for whatever is drawn at random.

        Returns:
            `(features,)`, `(features, y)` or `(features, y, sample_weight)`.
        """
        arrays = [a[rows] for a in examples[1:] if a is not None]
        return (self.features(examples.encoded, rows, width), *arrays)

    def features(self, encoded: Any, rows: np.ndarray, width: int) -> dict[str, np.ndarray]:
        """The model's inputs for some rows, padded to `width`; see `Preprocessor.features`."""
        return self.text_preprocessor.features(encoded, rows, width)

    def backbone_inputs(self, features: dict[str, Any]) -> dict[str, Any]:
        """What the backbone gets of token features, to be checked: those that are not the task's own."""
        own = self.input.keys() - self.backbone.input.keys()
        return {name: values for name, values in features.items() if name not in own}

    def extra_features(self, encoded: Any) -> dict[str, np.ndarray]:
        """Inputs beside the backbone's that predictions need: arrays of one row per example."""
        return {}


def _as_list(callbacks: Any) -> list[keras.callbacks.Callback]:
    callbacks = getattr(callbacks, "callbacks", callbacks) or []
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
