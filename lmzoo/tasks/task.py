"""The base of all task models: strings in, trained and saved like any Keras model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from lmzoo.models.backbone import Backbone
from lmzoo.models.family import Family, family_of
from lmzoo.tasks.feeding import (
    BATCH_SIZE,
    as_array,
    check_features,
    encode_examples,
    encode_stream,
    expected_retracing,
    is_batched,
    prediction_batches,
    prediction_stream,
    steps_in,
    training_input,
)
from lmzoo.tasks.inputs import check_preprocessor, is_raw, is_text_stream, split_segments, split_validation
from lmzoo.tasks.keeping import KeptModel
from lmzoo.text import EncodedTexts, LengthBatches, Preprocessor
from lmzoo.text.batching import keras_input
from lmzoo.text.policy import notify
from lmzoo.training import AdamW
from lmzoo.training.losses import loss_of_logits

_WARMUP_OF_UNKNOWN = 100  # steps, where the length of the training is not known


class Task(KeptModel):
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

    default_loss: ClassVar[Callable[[], Any]]
    default_metrics: ClassVar[Callable[[], list[Any]]]
    needs_labels: ClassVar[bool] = True
    uses_pooler: bool = True

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

    # A loss that does not reach the pooler cannot train it, and Keras would warn of the missing gradients at every fit.
    @property
    def trainable_variables(self) -> list[Any]:
        """Weights that training updates; a pooler that the task does not use is not among them."""
        return self._split_idle(super().trainable_variables)[0]

    @property
    def non_trainable_variables(self) -> list[Any]:
        """All other variables, those of an unused pooler included."""
        return super().non_trainable_variables + self._split_idle(super().trainable_variables)[1]

    trainable_weights = trainable_variables

    @property
    def non_trainable_weights(self) -> list[Any]:
        """All other weights, those of an unused pooler included; seeds and metrics are not among them."""
        return super().non_trainable_weights + self._split_idle(super().trainable_weights)[1]

    def _split_idle(self, variables: list[Any]) -> tuple[list[Any], list[Any]]:
        """`variables` without and within an unused pooler."""
        pooler = None if self.uses_pooler else getattr(getattr(self, "backbone", None), "pooler", None)
        idle = set() if pooler is None else {id(v) for v in pooler.variables}
        return [v for v in variables if id(v) not in idle], [v for v in variables if id(v) in idle]

    # === Compile and fit ===

    def compile(
        self,
        optimizer: Any = "auto",
        loss: Any = "auto",
        metrics: Any = "auto",
        weighted_metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """Configures training as `keras.Model.compile` does; `"auto"` takes the task's default.

        The default optimizer is `lmzoo.training.AdamW` with gradients clipped to norm 1, a warm-up over the first tenth
        of a `fit` and a linear decay to its end. Its peak rate is 5e-5 · 768 / H: the value of Devlin et al. (2019) for
        a width of 768, and more for narrower models.

        Args:
            optimizer: `"auto"` or a Keras optimizer.
            loss: `"auto"` or a Keras loss. The model's outputs are logits, and so a name such as
                `"sparse_categorical_crossentropy"` stands for the loss of logits.
            metrics: `"auto"` or a list of Keras metrics. They take the weights of the examples into account.
            weighted_metrics: more of them.
            **kwargs: of `keras.Model.compile`, such as `jit_compile`.

        Raises:
            ValueError: for a cross-entropy of probabilities.
        """
        if isinstance(optimizer, str) and optimizer == "auto":
            optimizer = AdamW(5e-5 * 768 / self.backbone.config.hidden_dim, global_clipnorm=1.0)
        if isinstance(loss, str) and loss == "auto":
            loss = type(self).default_loss()
        loss = loss_of_logits(loss)
        if isinstance(metrics, str) and metrics == "auto":
            metrics = type(self).default_metrics()
        weighted_metrics = [*(metrics or []), *(weighted_metrics or [])]
        super().compile(optimizer=optimizer, loss=loss, weighted_metrics=weighted_metrics, **kwargs)
        self.backbone.compiled_by_xla(self.jit_compile)

    def quantize(self, mode: str = "int8", **kwargs: Any) -> None:
        """Quantises the backbone's weights, for smaller files and predictions; the head stays as it is.

        Args:
            mode: as in `keras.Model.quantize`.
            **kwargs: of `keras.Model.quantize`.
        """
        config = self.get_compile_config()
        self.backbone.quantize(mode, **kwargs)
        # The compiled functions and the optimizer know the old weights.
        self.train_function = self.test_function = self.predict_function = None
        if config is not None:
            self.compile_from_config({**config, "optimizer_built": False})

    def get_compile_config(self) -> dict[str, Any] | None:
        """What `compile` was given, and whether the optimizer has state yet; None for a task that is not compiled."""
        config = super().get_compile_config()
        return config and {**config, "optimizer_built": self.optimizer.built}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as `get_compile_config` says and creates the optimizer's state, ready to be loaded."""
        config = keras.saving.deserialize_keras_object(config)
        built = config.pop("optimizer_built", False)
        self.compile(**config)
        if built:
            self.optimizer.build(self.trainable_variables)

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
            raise ValueError(f"{type(self).__name__} learns from texts alone: `fit` takes no labels (`y`).")
        if self.optimizer is None:
            raise ValueError("This model was loaded without its optimizer: call `compile()` before `fit`.")
        batch_size = batch_size or BATCH_SIZE
        if validation_split and validation_data is None and is_raw(x):
            examples = encode_examples(self, x, y, sample_weight)
            (x, y, sample_weight), validation_data = split_validation(*examples, share=validation_split)
            validation_split = 0.0
        # A later fit draws anew; the same model draws the same.
        draw = (seed, int(keras.ops.convert_to_numpy(self.optimizer.iterations)))
        order = "shuffle" if shuffle else "given"
        x, y, sample_weight = training_input(self, x, y, sample_weight, batch_size, order, draw, redraw=True)
        if isinstance(validation_data, (tuple, list)):
            held_x, held_y, held_weight = (*validation_data, None, None)[:3]
            held_order = "given" if kwargs.get("validation_steps") else "sorted"
            held_x, *rest = training_input(self, held_x, held_y, held_weight, batch_size, held_order)
            validation_data = (keras_input(held_x), *rest)
        elif is_text_stream(validation_data):
            validation_data, *_ = training_input(self, validation_data, batch_size=batch_size)
        if class_weight is not None:
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
        self._start_schedule(steps, epochs, initial_epoch, callbacks)
        if isinstance(x, LengthBatches):
            callbacks.append(keras.callbacks.LambdaCallback(on_epoch_begin=x.begin_epoch))
        return super().fit(
            x=keras_input(x),
            y=y,
            batch_size=None if is_batched(x) else batch_size,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_split=validation_split,
            validation_data=validation_data,
            shuffle=shuffle and not is_batched(x),
            class_weight=class_weight,
            sample_weight=sample_weight,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            **kwargs,
        )

    def _start_schedule(
        self, steps: int | None, epochs: int, initial_epoch: int, callbacks: list[keras.callbacks.Callback]
    ) -> None:
        """Fits the default schedule to the coming training, from the current iteration on."""
        self.optimizer.build(self.trainable_variables)
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)  # with float16 Keras scales the loss
        if not isinstance(optimizer, AdamW):
            return
        scheduler = any(isinstance(c, keras.callbacks.LearningRateScheduler) for c in callbacks)
        if scheduler or not hasattr(optimizer.learning_rate, "assign"):
            optimizer.start_schedule()  # The callback, or a Keras schedule, says what the rate is.
        elif steps is None:
            optimizer.start_schedule(warmup_steps=_WARMUP_OF_UNKNOWN)
        else:
            batches = optimizer.gradient_accumulation_steps or 1  # that one update takes
            total, elapsed = steps * epochs // batches, steps * initial_epoch // batches
            plateau = any(isinstance(c, keras.callbacks.ReduceLROnPlateau) for c in callbacks)
            optimizer.start_schedule(math.ceil(total / 10), 0 if plateau else total, elapsed)

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
            if self.input.keys() == self.backbone.input.keys():
                with expected_retracing():
                    return super().predict(prediction_stream(self, x, batch_size or BATCH_SIZE), **kwargs)
            x = encode_stream(self, x)
        if not is_raw(x):
            check_features(self, x)
            return super().predict(x, batch_size=batch_size, **kwargs)
        encoded = self.encode_inputs(x)
        if (steps := kwargs.pop("steps", None)) is not None:
            encoded = encoded[: steps * (batch_size or BATCH_SIZE)]
        if not len(encoded):
            return np.zeros((0, *(d or 0 for d in self.output_shape[1:])), "float32")
        batches = prediction_batches(self, encoded, batch_size or BATCH_SIZE)
        with expected_retracing():
            outputs = super().predict(keras_input(batches), **kwargs)
        result = np.empty((len(encoded), *outputs.shape[1:]), outputs.dtype)
        result[batches.row_order] = outputs
        return result

    # === What subclasses say about their examples ===

    def encode_inputs(self, x: Any, notify: Callable[[str], None] = notify) -> EncodedTexts:
        """Texts as packed rows of token ids.

        Args:
            x: texts or pairs of texts; rows that are encoded already are returned as they are.
            notify: what to do with notices; see `Preprocessor.encode`.

        Raises:
            TypeError: naming the position of an entry that is not text.
            ValueError: if there is no preprocessor.
        """
        if self.preprocessor is None:
            raise ValueError(
                f"This {type(self).__name__} has no preprocessor, so it takes token features (a dict of arrays), not "
                "text. Pass `preprocessor=` when building it, or load it with `from_preset`."
            )
        check_preprocessor(self.backbone, self.preprocessor)  # again: its `sequence_length` can be set
        if isinstance(x, EncodedTexts):
            return x
        return self.preprocessor.encode(*split_segments(x, self.preprocessor.tokenizer.takes_words), notify=notify)

    def encode_labels(self, y: Any) -> np.ndarray | None:
        """Labels as the array that the loss takes, each checked to be one; None stays None."""
        return as_array(y)

    def make_batch(
        self,
        encoded: EncodedTexts,
        rows: np.ndarray,
        width: int,
        y: np.ndarray | None,
        sample_weight: np.ndarray | None,
        rng: np.random.Generator,
    ) -> tuple[Any, ...]:
        """A batch to train on or to evaluate.

        Args:
            encoded: all examples.
            rows: int array (b,), which of them.
            width: int, padded length.
            y: labels of all examples, or None.
            sample_weight: weights of all examples, or None.
            rng: for whatever is drawn at random.

        Returns:
            `(features,)`, `(features, y)` or `(features, y, sample_weight)`.
        """
        arrays = [a[rows] for a in (y, sample_weight) if a is not None]
        return (self.preprocessor.features(encoded, rows, width), *arrays)

    def extra_features(self, encoded: EncodedTexts) -> dict[str, np.ndarray]:
        """Inputs beside the backbone's that predictions need: arrays of one row per example."""
        return {}


def _as_list(callbacks: Any) -> list[keras.callbacks.Callback]:
    callbacks = getattr(callbacks, "callbacks", callbacks) or []
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
