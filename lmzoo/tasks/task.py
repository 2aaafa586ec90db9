"""The base of all task models: strings in, trained and saved like any Keras model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
import numpy as np

from lmzoo.models.backbone import Backbone
from lmzoo.models.family import Family, family_of
from lmzoo.presets.loading import load_task, save_task
from lmzoo.tasks.inputs import is_raw, is_text_stream, split_segments, split_validation
from lmzoo.text import EncodedTexts, LengthBatches, Preprocessor
from lmzoo.text.batching import fitted_buckets, keras_input, ladder_buckets
from lmzoo.training import AdamW

_BATCH_SIZE = 32
_WARMUP_OF_UNKNOWN = 100  # steps, where the length of the training is not known


class Task(keras.Model):
    """A backbone, a head and a preprocessor in one Functional model.

    `fit`, `evaluate` and `predict` take raw text (a list or array of strings, pairs as a tuple of two lists or a list of
    2-tuples), a `tf.data.Dataset` of strings, or what Keras takes: dicts of token features. Text is tokenised once and
    batched by length.

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
            _check_preprocessor(backbone, preprocessor)
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.labels = None if labels is None else tuple(labels)
        self.dtype_policy = backbone.dtype_policy
        self.compile()

    @property
    def family(self) -> Family:
        """The record of the backbone's family."""
        return family_of(self.backbone)

    # === Compile and fit ===

    def compile(
        self, optimizer: Any = "auto", loss: Any = "auto", metrics: Any = "auto", **kwargs: Any
    ) -> None:
        """Configures training as `keras.Model.compile` does; `"auto"` takes the task's default.

        The default optimizer is `lmzoo.training.AdamW` with gradients clipped to norm 1, a warm-up over the first tenth
        of a `fit` and a linear decay to its end. Its peak rate is 5e-5 · 768 / H: the value of Devlin et al. (2019) for
        a width of 768, and more for narrower models.

        Args:
            optimizer: `"auto"` or a Keras optimizer.
            loss: `"auto"` or a Keras loss.
            metrics: `"auto"` or a list of Keras metrics.
            **kwargs: of `keras.Model.compile`, such as `jit_compile`.
        """
        if isinstance(optimizer, str) and optimizer == "auto":
            optimizer = AdamW(5e-5 * 768 / self.backbone.config.hidden_dim, global_clipnorm=1.0)
        if isinstance(loss, str) and loss == "auto":
            loss = type(self).default_loss()
        if isinstance(metrics, str) and metrics == "auto":
            metrics = type(self).default_metrics()
        super().compile(optimizer=optimizer, loss=loss, weighted_metrics=metrics, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as `get_compile_config` says and creates the optimizer's state, ready to be loaded."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
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
        batch_size = batch_size or _BATCH_SIZE
        if is_raw(x):
            x, y, sample_weight = self._encode(x), self._encode_labels(y), _as_array(sample_weight)
            _check_lengths(x, y, sample_weight)
            if validation_split and validation_data is None:
                (x, y, sample_weight), validation_data = split_validation(x, (y, sample_weight), validation_split)
                validation_split = 0.0
            x = self._batches(
                x, y, sample_weight, batch_size, fitted_buckets(x.lengths), "shuffle" if shuffle else "given", seed
            )
            y = sample_weight = None
        elif is_text_stream(x):
            x = self._stream(x, batch_size)
        elif y is not None:
            y = self._encode_labels(y)
        if isinstance(validation_data, tuple):
            val_x, val_y, *val_weight = validation_data
            if is_raw(val_x):
                validation_data = self._evaluation_input(val_x, val_y, *val_weight, batch_size=batch_size)
        elif is_text_stream(validation_data):
            validation_data = self._stream(validation_data, batch_size)
        if class_weight is not None:
            class_weight = {int(self._encode_labels([k])[0]): v for k, v in class_weight.items()}
        self._start_schedule(x, steps_per_epoch, epochs, initial_epoch, batch_size, callbacks)
        # Keras warns if told to shuffle or batch what comes in batches already.
        in_batches = isinstance(x, keras.utils.PyDataset) or hasattr(x, "element_spec")
        return super().fit(
            x=keras_input(x) if isinstance(x, LengthBatches) else x,
            y=y,
            batch_size=None if in_batches else batch_size,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_split=validation_split,
            validation_data=validation_data,
            shuffle=shuffle and not in_batches,
            class_weight=class_weight,
            sample_weight=sample_weight,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            **kwargs,
        )

    def _start_schedule(
        self, x: Any, steps: int | None, epochs: int, initial_epoch: int, batch_size: int, callbacks: Any
    ) -> None:
        """Fits the default schedule to the coming training, from the current iteration on."""
        if not isinstance(self.optimizer, AdamW):
            return
        self.optimizer.build(self.trainable_variables)
        listed = getattr(callbacks, "callbacks", callbacks) or []
        listed = listed if isinstance(listed, (list, tuple)) else [listed]
        steps = steps or _steps(x, batch_size)
        if any(isinstance(c, keras.callbacks.LearningRateScheduler) for c in listed):
            self.optimizer.start_schedule()  # The callback says what the rate is.
        elif steps is None:
            self.optimizer.start_schedule(warmup_steps=_WARMUP_OF_UNKNOWN)
        else:
            total, elapsed = steps * epochs, steps * initial_epoch
            plateau = any(isinstance(c, keras.callbacks.ReduceLROnPlateau) for c in listed)
            self.optimizer.start_schedule(math.ceil(total / 10), 0 if plateau else total, elapsed)

    # === Evaluate and predict ===

    def evaluate(self, x: Any = None, y: Any = None, batch_size: int | None = None, **kwargs: Any) -> Any:
        """Loss and metrics; takes what `fit` takes. See `keras.Model.evaluate`."""
        if is_raw(x):
            x = self._evaluation_input(x, y, kwargs.pop("sample_weight", None), batch_size=batch_size or _BATCH_SIZE)
            return super().evaluate(x, **kwargs)
        if is_text_stream(x):
            return super().evaluate(self._stream(x, batch_size or _BATCH_SIZE), **kwargs)
        return super().evaluate(x, y, batch_size=batch_size, **kwargs)

    def predict(self, x: Any, batch_size: int | None = None, **kwargs: Any) -> Any:
        """The model's outputs (logits) in the order of `x`; see `keras.Model.predict`.

        Args:
            x: texts, a `tf.data.Dataset` of them, or token features.
            batch_size: int, 32 by default.
            **kwargs: of `keras.Model.predict`.
        """
        if is_text_stream(x):
            return super().predict(self._stream(x, batch_size or _BATCH_SIZE, labelled=False), **kwargs)
        if not is_raw(x):
            return super().predict(x, batch_size=batch_size, **kwargs)
        return self._predict_rows(self._encode(x), batch_size or _BATCH_SIZE, **kwargs)

    def _predict_rows(self, encoded: EncodedTexts, batch_size: int, **kwargs: Any) -> Any:
        if not len(encoded):
            return np.zeros((0, *(d or 0 for d in self.output_shape[1:])), "float32")
        extra = self._extra_features(encoded)

        def make_batch(rows: np.ndarray, width: int, rng: np.random.Generator) -> tuple[Any, ...]:
            features = self.preprocessor.features(encoded, rows, width)
            return ({**features, **{name: values[rows] for name, values in extra.items()}},)

        buckets = ladder_buckets(max(self.preprocessor.sequence_length, int(encoded.lengths.max())))
        batches = LengthBatches(encoded.lengths, make_batch, batch_size, buckets, "sorted", round_up=True)
        outputs = super().predict(keras_input(batches), **kwargs)
        result = np.empty((len(encoded), *outputs.shape[1:]), outputs.dtype)
        result[batches.row_order] = outputs
        return result

    def _extra_features(self, encoded: EncodedTexts) -> dict[str, np.ndarray]:
        """Inputs beside the backbone's that predictions need, one row each."""
        return {}

    # === From text to batches ===

    def _encode(self, x: Any) -> EncodedTexts:
        if isinstance(x, EncodedTexts):
            return x
        if self.preprocessor is None:
            raise ValueError(
                f"This {type(self).__name__} has no preprocessor, so it takes token features (a dict of arrays), not "
                "text. Pass `preprocessor=` when building it, or load it with `from_preset`."
            )
        return self.preprocessor.encode(*split_segments(x))

    def _encode_labels(self, y: Any) -> np.ndarray | None:
        """Labels as the array that the loss takes; subclasses check them."""
        return _as_array(y)

    def _make_batch(
        self,
        encoded: EncodedTexts,
        rows: np.ndarray,
        width: int,
        y: np.ndarray | None,
        sample_weight: np.ndarray | None,
        rng: np.random.Generator,
    ) -> tuple[Any, ...]:
        """One batch for Keras: `(features,)`, `(features, y)` or `(features, y, sample_weight)`."""
        batch = (self.preprocessor.features(encoded, rows, width),)
        if y is not None:
            batch += (y[rows],)
            if sample_weight is not None:
                batch += (sample_weight[rows],)
        return batch

    def _batches(
        self,
        encoded: EncodedTexts,
        y: np.ndarray | None,
        sample_weight: np.ndarray | None,
        batch_size: int,
        buckets: list[int],
        order: str,
        seed: int = 0,
    ) -> LengthBatches:
        def make_batch(rows: np.ndarray, width: int, rng: np.random.Generator) -> tuple[Any, ...]:
            return self._make_batch(encoded, rows, width, y, sample_weight, rng)

        return LengthBatches(encoded.lengths, make_batch, batch_size, buckets, order, seed)

    def _evaluation_input(self, x: Any, y: Any, sample_weight: Any = None, batch_size: int = _BATCH_SIZE) -> Any:
        encoded, y, sample_weight = self._encode(x), self._encode_labels(y), _as_array(sample_weight)
        _check_lengths(encoded, y, sample_weight)
        buckets = fitted_buckets(encoded.lengths)
        return keras_input(self._batches(encoded, y, sample_weight, batch_size, buckets, "sorted"))

    def _stream(self, dataset: Any, batch_size: int, labelled: bool = True) -> Any:
        """A `tf.data.Dataset` of strings as one of features, batch by batch, in its own order."""
        import tensorflow as tf

        flat = dataset.element_spec
        while isinstance(flat, tuple):
            flat = flat[0]
        if flat.shape.rank == 0:
            dataset = dataset.batch(batch_size)

        def generate() -> Any:
            for element in dataset.as_numpy_iterator():
                x, y, *weight = element if isinstance(dataset.element_spec, tuple) else (element, None)
                x = tuple(part.tolist() for part in x) if isinstance(x, tuple) else x
                encoded = self._encode(x)
                buckets = ladder_buckets(self.preprocessor.sequence_length)
                width = buckets[int(np.searchsorted(buckets, encoded.lengths.max()))]
                labels = self._encode_labels(y) if labelled else None
                rows = np.arange(len(encoded))
                rng = np.random.default_rng(int(encoded.token_ids[: 2**10].sum()))
                yield self._make_batch(encoded, rows, width, labels, _as_array(weight[0]) if weight else None, rng)

        first = next(generate())
        signature = keras.tree.map_structure(lambda a: tf.TensorSpec([None] * a.ndim, a.dtype), first)
        stream = tf.data.Dataset.from_generator(generate, output_signature=signature)
        return stream.apply(tf.data.experimental.assert_cardinality(dataset.cardinality())).prefetch(2)

    # === Saving ===

    def save_assets(self, directory: str) -> None:
        """Writes the vocabulary; Keras calls it when saving `.keras` files."""
        if self.preprocessor is not None:
            self.preprocessor.save_assets(directory)

    def load_assets(self, directory: str) -> None:
        """Reads the vocabulary; Keras calls it when loading `.keras` files."""
        if self.preprocessor is not None:
            self.preprocessor.load_assets(directory)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "preprocessor": keras.saving.serialize_keras_object(self.preprocessor),
            "labels": None if self.labels is None else list(self.labels),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Builds a task from `get_config`'s output."""
        parts = {name: keras.saving.deserialize_keras_object(config[name]) for name in ("backbone", "preprocessor")}
        return cls(**{**config, **parts})

    @classmethod
    def from_preset(
        cls,
        preset: str | Path,
        load_weights: bool = True,
        dtype: Any = None,
        dropout: float | None = None,
        sequence_length: int | None = None,
        labels: Sequence[str] | None = None,
        preprocessor: Preprocessor | None = None,
        **task_kwargs: Any,
    ) -> Self:
        """Builds the task on a preset's backbone, with the preset's head if it has one that fits.

        Args:
            preset: a name from `lmzoo.list_presets()`, a local directory, `hf://org/name` or `kaggle://...`.
            load_weights: False for the architecture with random weights.
            dtype: dtype policy, such as `"mixed_bfloat16"`.
            dropout: rate inside the backbone instead of the preset's.
            sequence_length: longest row in tokens instead of the preset's.
            labels: names of the classes.
            preprocessor: instead of the preset's.
            **task_kwargs: of the task's constructor, such as `num_classes`.

        Returns:
            The compiled task.

        Raises:
            ValueError: unknown preset (near names are suggested), altered or missing file, `sequence_length` above the
                model's.

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
            load_weights=load_weights,
            backbone_overrides=overrides,
            sequence_length=sequence_length,
            preprocessor=preprocessor,
            **task_kwargs,
        )

    def save_to_preset(self, directory: str | Path, overwrite: bool = True) -> None:
        """Writes backbone, head, labels and vocabulary as a preset.

        Args:
            directory: where to. A failure leaves what was there untouched.
            overwrite: whether an existing directory may be replaced.
        """
        save_task(self, directory, overwrite=overwrite)


def _as_array(values: Any) -> np.ndarray | None:
    return None if values is None else np.asarray(values)


def _check_lengths(x: EncodedTexts, *arrays: np.ndarray | None) -> None:
    for array in arrays:
        if array is not None and len(array) != len(x):
            raise ValueError(f"Got {len(x)} texts but {len(array)} labels or weights.")


def _check_preprocessor(backbone: Backbone, preprocessor: Preprocessor) -> None:
    limit = backbone.config.max_sequence_length
    if preprocessor.sequence_length > limit:
        raise ValueError(
            f"`sequence_length` is {preprocessor.sequence_length}, but the model has positions for {limit} tokens. "
            f"Choose at most {limit}."
        )


def _steps(x: Any, batch_size: int) -> int | None:
    """Batches of an epoch over `x`, if that can be known."""
    if isinstance(x, LengthBatches):
        return len(x)
    if hasattr(x, "cardinality"):
        count = int(x.cardinality())
        return count if count > 0 else None
    if isinstance(x, keras.utils.PyDataset):
        return x.num_batches
    if isinstance(x, dict):
        return math.ceil(len(next(iter(x.values()))) / batch_size)
    return None
