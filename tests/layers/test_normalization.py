"""LayerNorm, RMSNorm and GELU against Keras: values and all gradients."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import LayerNorm, RMSNorm, get_activation
from tests.reference.gradients import gradients
from tests.reference.weights import difference, to_numpy

SHAPE = (3, 5, 7)
NORMS = {
    "layer norm": (LayerNorm, keras.layers.LayerNormalization, {"epsilon": 1e-12}),
    "layer norm, no bias": (LayerNorm, keras.layers.LayerNormalization, {"epsilon": 1e-12, "center": False}),
    "RMS norm": (RMSNorm, keras.layers.RMSNormalization, {"epsilon": 1e-3}),
}


def make_norms(name, dtype):
    """Return our layer and Keras' layer, with the same random weights."""
    *classes, arguments = NORMS[name]
    layers = [cls(dtype=dtype, **arguments) for cls in classes]
    for layer in layers:
        layer.build((None, None, SHAPE[-1]))
        values = np.random.default_rng(0).normal(1, 0.5, (len(layer.weights), SHAPE[-1]))
        layer.set_weights(list(values.astype("float32")))
    return layers


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("mixed_bfloat16", 0.02)])
def test_norms_equal_keras(dtype, tolerance, name):
    x = np.random.default_rng(1).normal(3, 2, SHAPE).astype("float32")
    actual, expected = (layer(x) for layer in make_norms(name, dtype))
    assert actual.dtype == expected.dtype
    assert difference(to_numpy(actual), to_numpy(expected)) <= tolerance


@pytest.mark.parametrize("arguments", [{"axis": [1, 2]}, {"axis": 1}, {"axis": 2}, {"center": False}, {"scale": False}])
def test_arguments_of_keras_have_the_meaning_of_keras(arguments):
    x = np.random.default_rng(1).normal(3, 2, (3, 7, 7)).astype("float32")  # square: a wrong axis would fit
    layer = LayerNorm(epsilon=1e-3, **arguments)
    layer.build(x.shape)
    weights = [np.random.default_rng(k).normal(1, 0.5, w.shape).astype("float32") for k, w in enumerate(layer.weights)]
    layer.set_weights(weights)
    axes = tuple(np.ravel(arguments.get("axis", -1)))
    expected = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-3)
    shape = [n if k in axes or k - 3 in axes else 1 for k, n in enumerate(x.shape)]
    scales = dict(zip([w.name for w in layer.weights], weights, strict=True))
    expected = expected * np.reshape(scales.get("gamma", np.ones(shape)), shape)
    expected = expected + np.reshape(scales.get("beta", np.zeros(shape)), shape)
    assert difference(to_numpy(layer(x)), expected) <= 1e-5


def gradients_through(layer):
    """Return the gradients of a quadratic loss behind a projection and `layer`, by weight."""
    x = np.random.default_rng(2).normal(size=(*SHAPE[:2], 11)).astype("float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((None, 11)), keras.layers.Dense(SHAPE[-1], name="before"), layer])
    target = np.random.default_rng(3).normal(size=SHAPE).astype("float32")
    return list(gradients(model, lambda y: keras.ops.sum(keras.ops.square(y - target)), x).values())


def gelu():
    """Return our exact GELU and Keras' GELU as layers."""
    functions = (get_activation("gelu"), lambda x: keras.ops.gelu(x, approximate=False))
    return [keras.layers.Activation(function) for function in functions]


@pytest.mark.parametrize("name", [*NORMS, "gelu"])
def test_gradients_equal_keras(name):
    actual, expected = map(gradients_through, gelu() if name == "gelu" else make_norms(name, "float32"))
    assert len(actual) == {"layer norm": 4, "gelu": 2}.get(name, 3)
    for gradient, desired in zip(actual, expected, strict=True):
        np.testing.assert_allclose(gradient, desired, rtol=1e-4, atol=1e-4)


def test_rms_norm_squares_in_float32():
    """The squares of these numbers are infinite in float16."""
    x = np.array([[300.0, -400.0]], "float16")
    np.testing.assert_allclose(to_numpy(RMSNorm(dtype="float16")(x)), [[0.8485, -1.1316]], atol=1e-3)


def test_gelu_equals_keras():
    x = np.linspace(-9, 9, 1801, dtype="float32")
    actual, expected = (to_numpy(layer(x)) for layer in gelu())
    assert difference(actual, expected) <= 1e-6
