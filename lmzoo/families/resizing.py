"""Copying of weights between models with different vocabulary sizes."""

from __future__ import annotations

import keras
import numpy as np


def copy_weights(model: keras.Model, resized: keras.Model, seed: int) -> None:
    """Copy weights into a model that differs only in its number of tokens.

    A weight with a token axis is truncated, or extended with random rows: new values of a column are drawn from
    a normal distribution with the mean and variance of that column in the old rows.

    Args:
        model: model to copy from.
        resized: model to copy into.
        seed: seed of the random rows.
    """
    rng = np.random.default_rng(seed)
    for weight, resized_weight in zip(model.weights, resized.weights, strict=True):
        # Arrays are not shared: compiled steps on JAX delete their inputs.
        resized_weight.assign(
            keras.ops.convert_to_numpy(weight)
            if weight.shape == resized_weight.shape
            else _resize(weight, resized_weight.shape, rng)
        )


def _resize(weight: keras.Variable, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return the values of a weight, truncated or extended to `shape` along its token axis; see `copy_weights`."""
    values = keras.ops.convert_to_numpy(keras.ops.cast(weight, "float32"))
    axis = next(axis for axis, size in enumerate(shape) if size != values.shape[axis])
    values = np.moveaxis(values, axis, 0)  # (V, ...)
    num_new_rows = max(shape[axis] - len(values), 0)
    new_rows = rng.normal(values.mean(axis=0), values.std(axis=0), (num_new_rows, *values.shape[1:]))
    return np.moveaxis(np.concatenate([values[: shape[axis]], new_rows]), 0, axis)
