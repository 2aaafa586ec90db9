"""Variables, gradients and training steps for tests of optimizers."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests.reference.weights import to_numpy

SHAPES = {"kernel": (7, 5), "bias": (5,), "layer_norm_gamma": (5,), "embeddings": (11, 3)}
DECAYED = ("kernel", "embeddings")
STEPS = 5
ARGUMENTS = {"learning_rate": 0.03, "weight_decay": 0.1, "epsilon": 1e-6, "global_clipnorm": 1.0}


def start(dtype="float32"):
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=shape).astype("float32") for name, shape in SHAPES.items()}
    return {n: keras.Variable(keras.ops.cast(v, dtype), dtype=dtype, name=n) for n, v in values.items()}


def gradient(step):
    """Return gradients whose norm is above 1 in the first steps, so that they are clipped, and below 1 later."""
    rng = np.random.default_rng(100 + step)
    return [(0.5 / (1 + step) ** 2 * rng.normal(size=shape)).astype("float32") for shape in SHAPES.values()]


def train(optimizer, steps=STEPS, wrap=None, dtype="float32"):
    variables = start(dtype)
    optimizer.build(list(variables.values()))
    apply = wrap(optimizer, list(variables.values())) if wrap else optimizer.apply
    for step in range(steps):
        grads = [keras.ops.cast(g, dtype) for g in gradient(step)]
        apply(grads)
    return {name: to_numpy(v.value) for name, v in variables.items()}


def compiled(optimizer, variables, jit_compile=True):
    """Return a function that applies gradients in a graph, or on JAX eagerly, or compiled by XLA."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(lambda grads: optimizer.apply(grads, variables), jit_compile=jit_compile)
    if keras.backend.backend() != "jax":
        pytest.skip("the backend does not compile")
    import jax

    step = jax.jit(optimizer.stateless_apply) if jit_compile else optimizer.stateless_apply

    def apply(grads):
        values, state = step([v.value for v in optimizer.variables], grads, [v.value for v in variables])
        for variable, value in zip([*variables, *optimizer.variables], [*values, *state], strict=True):
            variable.assign(value)

    return apply


def assert_equal(a, b, tolerance=1e-5):
    for name in SHAPES:
        np.testing.assert_allclose(a[name], b[name], atol=tolerance, rtol=0)


def train_in_numpy(bias_correction, scales_updates):
    """Return the weights after the steps of AdamW, or of LAMB if it `scales_updates` to the weights' norms."""
    weights = {name: to_numpy(v.value).astype("float64") for name, v in start().items()}
    first, second = (dict.fromkeys(SHAPES, 0.0) for _ in range(2))
    norms, ratios = [], []
    for step in range(STEPS):
        grads = dict(zip(SHAPES, gradient(step), strict=True))
        norms.append(np.sqrt(sum((g.astype("float64") ** 2).sum() for g in grads.values())))
        for name, g in grads.items():
            g = g / max(norms[-1], 1.0)
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g * g
            scale = np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1)) if bias_correction else 1.0
            update = scale * first[name] / (np.sqrt(second[name]) + 1e-6)
            if name in DECAYED:
                update = update + 0.1 * weights[name]
                if scales_updates:
                    ratios.append(np.linalg.norm(weights[name]) / np.linalg.norm(update))
                    update = ratios[-1] * update
            weights[name] = weights[name] - 0.03 * update
    assert norms[0] > 1 > norms[-1]
    assert not scales_updates or np.std(ratios) > 0.01
    return weights


def apply_slices(make):
    """Return the weights after a step from slices, two of them of one row, and from the same gradient as a table.

    Args:
        make: creates an optimizer.
    """
    import tensorflow as tf

    rows, values = [3, 3, 1], np.array([[2.0, 0, 0], [2.0, 0, 0], [0, 3.0, 0]], "float32")
    dense = np.zeros(SHAPES["embeddings"], "float32")
    np.add.at(dense, rows, values)
    results = []
    for grad in (tf.IndexedSlices(values, rows, dense.shape), tf.constant(dense)):
        optimizer, variables = make(), [start()["embeddings"], start()["bias"]]
        optimizer.build(variables)
        optimizer.apply([grad, tf.ones(5)], variables)
        results.append([to_numpy(v.value) for v in variables])
    return results
