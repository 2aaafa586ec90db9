"""The base of all task models: strings in, trained and saved like any Keras model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from lmzoo.families.backbone import Backbone
from lmzoo.family import Family, family_of
from lmzoo.head_kinds import HasHead
from lmzoo.tasks.base.compiling import CompiledModel
from lmzoo.tasks.base.data_adapter import (
    BATCH_SIZE,
    as_array,
    check_features,
    expected_retracing,
    is_batched,
    predict_encoded,
    prediction_stream,
    steps_in,
    texts_of_stream,
    training_input,
)
from lmzoo.tasks.base.input_kinds import check_preprocessor, is_raw, is_text_stream, split_segments, split_validation
from lmzoo.text import Encoded, Preprocessor
from lmzoo.text.batching import Batches, keras_input
from lmzoo.text.validate_text import notify
from lmzoo.training import ResumableCheckpoint


class Task(HasHead, CompiledModel):
    """A backbone, a head and a preprocessor in one Functional model.

    `fit`, `evaluate` and `predict` take raw text (a list or array of strings, pairs as a tuple of two lists or a list
    of 2-tuples), a `tf.data.Dataset` of strings, or what Keras takes: dicts of token features. Lists and arrays of text
    are tokenised once and batched by length; a dataset is tokenised as it streams.

    Args:
        backbone: `lmzoo.models.Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None to work on token features only.
        inputs: symbolic inputs, a dict.
        outputs: symbolic outputs.
        labels: names of the classes, or None.
        name: name of the model.
    """

    needs_labels: bool = True
    takes_no_labels: str = "learns from texts alone: `fit` takes no labels (`y`)."  # why, where it needs none
    weighs_no_classes: str = "has no classes to weight"  # why, where `class_weight` is refused
    independent_rows: bool = True  # whether Keras may shuffle the rows of token features
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
        self.compile()

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Whether the task works on backbones of a family."""
        return True

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
            batch_size: int, 32 by default.
            epochs: int, epoch to stop at.
            verbose: as in Keras.
            callbacks: as in Keras.
            validation_split: share of the examples, the last ones, to hold out.
            validation_data: `(x, y)` or `(x, y, sample_weight)`, or a dataset.
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
        if y is not None and not self.needs_labels and is_raw(x):
            raise ValueError(f"{type(self).__name__} {self.takes_no_labels}")
        if self.optimizer is None:
            raise ValueError("This model was loaded without its optimizer: call `compile()` before `fit`.")
        batch_size, given = batch_size or BATCH_SIZE, (x, y)
        if validation_split and validation_data is None and is_raw(x):
            examples = self.encode_examples(x, y, sample_weight)
            (x, y, sample_weight), validation_data = split_validation(*examples, share=validation_split)
            validation_split = 0.0
        # A later fit draws anew; the same model draws the same.
        draw = (seed, int(keras.ops.convert_to_numpy(self.optimizer.iterations)))
        order = "shuffle" if shuffle else "given"
        x, y, sample_weight = training_input(self, x, y, sample_weight, batch_size, order, draw, redraw=True)
        if isinstance(validation_data, (tuple, list)):
            held_x, held_y, held_weight = (*validation_data, None, None)[:3]
            held_order = "given" if kwargs.get("validation_steps") else "sorted"
            try:
                held_x, *rest = training_input(self, held_x, held_y, held_weight, batch_size, held_order)
            except (TypeError, ValueError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError  # some of their kinds take no message
                raise kind(f"In `validation_data`: {error}") from error
            validation_data = (keras_input(held_x), *rest)
        elif is_text_stream(validation_data):
            validation_data, *_ = training_input(self, validation_data, batch_size=batch_size)
        if class_weight is not None:
            if self.weighs_no_classes:
                raise ValueError(f"{type(self).__name__} {self.weighs_no_classes}: pass `sample_weight`.")
            if not isinstance(class_weight, dict):
                raise TypeError(f"`class_weight` must be a dict from classes to weights, got {class_weight!r:.60}.")
            # TensorFlow's datasets need a weight for every class.
            every = dict.fromkeys(range(getattr(self, "num_classes", 0)), 1.0)
            try:
                class_weight = {**every, **{int(self.encode_labels([k])[0]): v for k, v in class_weight.items()}}
            except ValueError as error:
                raise ValueError(f"In `class_weight`: {error}") from None
        callbacks = _as_list(callbacks)
        steps = steps_per_epoch or steps_in(x, batch_size, validation_split)
        if not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        start, same, done = None, False, (steps or 0) * initial_epoch
        checkpoint = next((c for c in callbacks if isinstance(c, ResumableCheckpoint)), None)
        if checkpoint is not None:
            if class_weight is not None:
                raise ValueError("A run that can be resumed takes no `class_weight`: pass `sample_weight`.")
            start, same = checkpoint.restore(self, x, epochs, steps, done)
            done, initial_epoch, steps_per_epoch = start, start // steps, steps
            others = [c for c in callbacks if c is not checkpoint]
            callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=checkpoint.reopen), *others, checkpoint]
        elif isinstance(x, Batches):
            callbacks.append(keras.callbacks.LambdaCallback(on_epoch_begin=x.begin_epoch))
        self.start_head(*given)
        if not same:
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

    # === Evaluate and predict ===

    def evaluate(
        self, x: Any = None, y: Any = None, batch_size: int | None = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        """Loss and metrics; takes what `fit` takes. See `keras.Model.evaluate`."""
        order = "given" if kwargs.get("steps") else "sorted"  # some of the batches must not be the shortest texts
        x, y, sample_weight = training_input(self, x, y, sample_weight, batch_size or BATCH_SIZE, order)
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

    def encode_inputs(self, x: Any, notify: Callable[[str], None] = notify) -> Any:
        """Texts as packed rows of token ids, or another kind of `lmzoo.text.Encoded`.

        Args:
            x: texts or pairs of texts; rows that are encoded already are returned as they are.
            notify: what to do with notices; see `Preprocessor.encode`.

        Raises:
            TypeError: naming the position of an entry that is not text.
            ValueError: if there is no preprocessor.
        """
        self.check_takes_text()
        if isinstance(x, Encoded):
            return x
        return self.preprocessor.encode(*split_segments(x, self.preprocessor.tokenizer.takes_words), notify=notify)

    def check_takes_text(self) -> None:
        """Checks that there is a preprocessor, and that what it makes fits the model.

        Raises:
            ValueError: if not.
        """
        if self.preprocessor is None:
            raise ValueError(
                f"This {type(self).__name__} has no preprocessor, so it takes token features (a dict of arrays), not "
                "text. Pass `preprocessor=` when building it, or load it with `from_preset`."
            )
        check_preprocessor(self.backbone, self.preprocessor)  # again: its `sequence_length` can be set

    def encode_examples(
        self, x: Any, y: Any = None, sample_weight: Any = None, notify: Callable[[str], None] = notify
    ) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
        """Texts, labels and weights as `fit` got them, encoded and checked: as many rows of each.

        Args:
            x: as for `encode_inputs`.
            y: labels, or None.
            sample_weight: float array (n,), or None.
            notify: see `encode_inputs`.

        Raises:
            TypeError: naming the position of an entry that is not text.
            ValueError: for labels that are missing, too few or not the model's.
        """
        encoded, y, sample_weight = self.encode_inputs(x, notify), self.encode_labels(y), as_array(sample_weight)
        self.check_counts(len(encoded), y, sample_weight)
        return encoded, y, sample_weight

    def start_head(self, x: Any, y: Any) -> None:
        """Called by `fit` with its examples, once they are checked and before the first step."""

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

    def encode_labels(self, y: Any) -> np.ndarray | None:
        """Labels as the array that the loss takes, each checked to be one; None stays None."""
        return as_array(y)

    def encode_weights(self, sample_weight: Any, y: np.ndarray | None) -> np.ndarray | None:
        """Weights of token features as the loss takes them; `y` is what `encode_labels` returned."""
        return as_array(sample_weight)

    def make_batch(
        self,
        encoded: Any,
        rows: np.ndarray,
        width: int,
        y: np.ndarray | None,
        sample_weight: np.ndarray | None,
        rng: np.random.Generator,
    ) -> tuple[Any, ...]:
        """A batch to train on or to evaluate.

        Args:
            encoded: all examples, as `encode_inputs` returns them.
            rows: int array (b,), which of them.
            width: int, padded length.
            y: labels of all examples, or None.
            sample_weight: weights of all examples, or None.
            rng: for whatever is drawn at random.

        Returns:
            `(features,)`, `(features, y)` or `(features, y, sample_weight)`.
        """
        arrays = [a[rows] for a in (y, sample_weight) if a is not None]
        return (self.features(encoded, rows, width), *arrays)

    def features(self, encoded: Any, rows: np.ndarray, width: int) -> dict[str, np.ndarray]:
        """The model's inputs for some rows, padded to `width`; see `Preprocessor.features`."""
        return self.preprocessor.features(encoded, rows, width)

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
