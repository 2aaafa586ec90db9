"""Weights of models with more tokens, or fewer."""

from __future__ import annotations

import keras
import numpy as np


def copy_weights(model: keras.Model, resized: keras.Model, seed: int) -> None:
    """Copy the weights into a model that differs in the number of tokens only.

    A weight with an axis of tokens is cut there, or extended by draws from normal distributions: those with the mean
    and the variance of the old rows in each column.

    Args:
        model: the model.
        resized: the model to copy into.
        seed: seed of the draws.
    """
    rng = np.random.default_rng(seed)
    for old, new in zip(model.weights, resized.weights, strict=True):
        new.assign(old if old.shape == new.shape else _resize(old, new.shape, rng))


def _resize(weight: keras.Variable, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    values = keras.ops.convert_to_numpy(keras.ops.cast(weight, "float32"))
    axis = next(axis for axis, size in enumerate(shape) if size != values.shape[axis])
    values = np.moveaxis(values, axis, 0)  # (V, ...)
    count = max(shape[axis] - len(values), 0)
    drawn = rng.normal(values.mean(axis=0), values.std(axis=0), (count, *values.shape[1:]))
    return np.moveaxis(np.concatenate([values[: shape[axis]], drawn]), 0, axis)
