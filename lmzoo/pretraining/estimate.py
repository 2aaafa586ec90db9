"""Estimates of training time, from a few steps on random ids with a model of the same size."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise

import keras
import numpy as np

from lmzoo.pretraining.encoders import build_encoder_backbone
from lmzoo.pretraining.language_model import build_language_model_backbone, count_sampled_words
from lmzoo.pretraining.recipe import OPTIMIZERS, Recipe

_MAX_STEPS = 20  # limits of the trial, which ends when it reaches one of them
_MAX_SECONDS = 10.0
_UNTIMED_STEPS = 2  # the first steps include the compilation


def estimate_training_seconds(recipe: Recipe) -> float:
    """Estimate the time of a training run on this machine in seconds, excluding the preparation of the text.

    A short trial runs the backbone with the optimizer, batches of the most frequent shape, and a head of about the same
    cost as the real head. It takes some seconds, mainly for compilation.

    Args:
        recipe: settings of the training.
    """
    length, batch_size, learning_rate = recipe.batch_settings
    predicts_words = recipe.method.words
    length = length if predicts_words else min(length, recipe.positions)
    text_length = recipe.span_corruption.text_length(length) if recipe.method.spans else length
    target_length = recipe.span_corruption.target_length(text_length) if recipe.method.spans else length
    backbone = (
        build_language_model_backbone(recipe)
        if predicts_words
        else build_encoder_backbone(recipe, recipe.vocabulary_size)
    )
    predicts_all = predicts_words or recipe.method.causal or recipe.method.spans
    num_predicted = target_length if predicts_all else recipe.masking.slots(length)
    num_classes = max(2, count_sampled_words(recipe.vocabulary_size)) if predicts_words else recipe.vocabulary_size
    hidden_states = backbone.output["sequence_output"][:, :num_predicted]  # (batch_size, num_predicted, width)
    model = keras.Model(backbone.input, keras.layers.Dense(num_classes, dtype=backbone.dtype_policy)(hidden_states))
    model.compile(
        OPTIMIZERS[recipe.optimizer](learning_rate, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    backbone.set_compiled_by_xla(model.jit_compile)
    rng = np.random.default_rng(recipe.seed)
    features: dict[str, np.ndarray] = {}
    shape: tuple[int, ...]
    for name, input_tensor in backbone.input.items():
        num_ids = backbone.id_counts[name]
        shape = (batch_size, target_length if name.startswith("decoder_") else length)
        if len(input_tensor.shape) == 3:
            shape += (backbone.config.max_characters,)
        # Masks and segments are constant.
        features[name] = rng.integers(1, num_ids, shape) if num_ids > 2 else np.full(shape, num_ids - 1)
    batch = (features, np.zeros((batch_size, num_predicted)))
    num_steps = _UNTIMED_STEPS + _MAX_STEPS
    timer = _StepTimer()
    model.fit((batch for _ in range(num_steps)), steps_per_epoch=num_steps, shuffle=False, verbose=0, callbacks=[timer])
    return timer.seconds() * recipe.tokens / (batch_size * text_length)


class _StepTimer(keras.callbacks.Callback):
    """A callback that measures the time of steps, and ends the trial after some seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Record the time, and stop the trial if it has taken long enough."""
        self._ends.append(time.perf_counter())
        timed_ends = self._ends[_UNTIMED_STEPS - 1 :]
        self.model.stop_training = len(timed_ends) > 1 and timed_ends[-1] - timed_ends[0] > _MAX_SECONDS

    def seconds(self) -> float:
        """Return the median time of a step in seconds."""
        return statistics.median(end - begin for begin, end in pairwise(self._ends[_UNTIMED_STEPS - 1 :]))
