"""Gradients of a model's loss, and of functions of arrays, on either backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest


def gradients(
    model: keras.Model, loss: Callable[[Any], Any], inputs: Any, training: bool = False
) -> dict[str, np.ndarray]:
    """Return d loss(model(inputs)) / d weight for every trainable weight, by its path."""
    variables = model.trainable_variables
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss(model(inputs))
        arrays = tape.gradient(value, [v.value for v in variables])
        arrays = [tf.convert_to_tensor(g) if g is not None else None for g in arrays]  # embeddings give slices
    elif keras.backend.backend() == "jax":
        import jax

        fixed = [v.value for v in model.non_trainable_variables]
        gradient = jax.grad(lambda w: loss(model.stateless_call(w, fixed, inputs)[0]))
        arrays = jax.jit(gradient)([v.value for v in variables])
    else:
        pytest.skip(f"no gradients on {keras.backend.backend()} here")
    assert not [v.path for v, g in zip(variables, arrays, strict=True) if g is None]
    return {v.path: np.asarray(g) for v, g in zip(variables, arrays, strict=True)}


def value_and_gradients(
    function: Callable[..., Any], *arrays: np.ndarray, compiled: bool = True
) -> tuple[float, list[np.ndarray]]:
    """Return the value of a function, and its gradient with respect to each array."""
    if keras.backend.backend() == "jax":
        import jax

        compute = jax.value_and_grad(function, argnums=tuple(range(len(arrays))))
        value, gradients = (jax.jit(compute) if compiled else compute)(*arrays)
        return float(value), [np.asarray(gradient) for gradient in gradients]
    if keras.backend.backend() != "tensorflow":
        pytest.skip(f"no gradients on {keras.backend.backend()} here")
    import tensorflow as tf

    def compute(*tensors: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        return value, tape.gradient(value, tensors)

    compute = tf.function(compute, jit_compile=True) if compiled else compute
    value, gradients = compute(*map(tf.constant, arrays))
    return float(value), [gradient.numpy() for gradient in gradients]
