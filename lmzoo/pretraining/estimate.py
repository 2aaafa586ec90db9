"""How long a training will take, from a few steps of a model of its size on random ids."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise

import keras
import numpy as np

from lmzoo.pretraining.encoders import encoder_backbone
from lmzoo.pretraining.language_model import language_model_backbone, sampled_words
from lmzoo.pretraining.recipe import OPTIMIZERS, Recipe

_STEPS, _SECONDS = 20, 10.0  # of the trial: it ends with the first of them
_UNTIMED = 2  # steps that compile


def training_seconds(recipe: Recipe) -> float:
    """Estimate the time of a training on this machine, without the preparation of the text.

    The trial has the backbone, the optimizer and the batches of most steps, and a head of about the same cost. It takes
    some seconds, mainly to compile.

    Args:
        recipe: how to train.

    Returns:
        Seconds.
    """
    length, batch_size, rate = recipe.batch_settings
    words = recipe.method.words
    length = length if words else min(length, recipe.positions)
    backbone = language_model_backbone(recipe) if words else encoder_backbone(recipe, recipe.vocabulary_size)
    predicted = length if words or recipe.method.causal else recipe.masking.slots(length)
    classes = max(2, sampled_words(recipe.vocabulary_size)) if words else recipe.vocabulary_size
    tokens = backbone.output["sequence_output"][:, :predicted]  # (B, P, H)
    model = keras.Model(backbone.input, keras.layers.Dense(classes, dtype=backbone.dtype_policy)(tokens))
    model.compile(
        OPTIMIZERS[recipe.optimizer](rate, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    backbone.set_compiled_by_xla(model.jit_compile)
    rng = np.random.default_rng(recipe.seed)
    features: dict[str, np.ndarray] = {}
    shape: tuple[int, ...]
    for name, x in backbone.input.items():
        count, shape = backbone.id_counts[name], (batch_size, length)
        if len(x.shape) == 3:
            shape += (backbone.config.max_characters,)
        # Masks and segments are all the same.
        features[name] = rng.integers(1, count, shape) if count > 2 else np.full(shape, count - 1)
    batch, steps = (features, np.zeros((batch_size, predicted))), _UNTIMED + _STEPS
    clock = _Clock()
    model.fit((batch for _ in range(steps)), steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[clock])
    return clock.seconds() * recipe.tokens / (batch_size * length)


class _Clock(keras.callbacks.Callback):
    """A clock of steps, which ends the trial when it has taken long enough."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Note the time."""
        self._ends.append(time.perf_counter())
        timed = self._ends[_UNTIMED - 1 :]
        self.model.stop_training = len(timed) > 1 and timed[-1] - timed[0] > _SECONDS

    def seconds(self) -> float:
        """Return the time of a step."""
        return statistics.median(b - a for a, b in pairwise(self._ends[_UNTIMED - 1 :]))
