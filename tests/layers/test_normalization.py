"""LayerNorm, RMSNorm and GELU against Keras': values and all gradients."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import LayerNorm, RMSNorm, get_activation
from tests.reference.gradients import gradients
from tests.reference.weights import difference, to_numpy

SHAPE = (3, 5, 7)


CENTERED = pytest.mark.parametrize("center", [True, False], ids=["bias", "no-bias"])


def layers(dtype, center):
    rng = np.random.default_rng(0)
    values = rng.normal(1, 0.5, (2, SHAPE[-1])).astype("float32")
    made = [kind(epsilon=1e-12, center=center, dtype=dtype) for kind in (LayerNorm, keras.layers.LayerNormalization)]
    for layer in made:
        layer.build((None, None, SHAPE[-1]))
        layer.set_weights(list(values[: 1 + center]))
    return made


@CENTERED
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("mixed_bfloat16", 0.02)])
def test_layer_norm_is_that_of_keras(dtype, tolerance, center):
    x = np.random.default_rng(1).normal(3, 2, SHAPE).astype("float32")
    ours, theirs = (layer(x) for layer in layers(dtype, center))
    assert ours.dtype == theirs.dtype
    assert difference(to_numpy(ours), to_numpy(theirs)) <= tolerance


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


def slopes(layer):
    """Gradients of a quadratic loss behind a projection and `layer`, by weight."""
    x = np.random.default_rng(2).normal(size=(*SHAPE[:2], 11)).astype("float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((None, 11)), keras.layers.Dense(SHAPE[-1], name="before"), layer])
    target = np.random.default_rng(3).normal(size=SHAPE).astype("float32")
    return list(gradients(model, lambda y: keras.ops.sum(keras.ops.square(y - target)), x).values())


@CENTERED
def test_layer_norm_has_the_gradients_of_keras(center):
    ours, theirs = (slopes(layer) for layer in layers("float32", center))
    assert len(ours) == 3 + center
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def rms_norms(dtype):
    scale = np.random.default_rng(0).normal(1, 0.5, SHAPE[-1:]).astype("float32")
    made = [kind(epsilon=1e-3, dtype=dtype) for kind in (RMSNorm, keras.layers.RMSNormalization)]
    for layer in made:
        layer.build((None, None, SHAPE[-1]))
        layer.set_weights([scale])
    return made


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("mixed_bfloat16", 0.02)])
def test_rms_norm_is_that_of_keras(dtype, tolerance):
    x = np.random.default_rng(1).normal(3, 2, SHAPE).astype("float32")
    ours, theirs = (layer(x) for layer in rms_norms(dtype))
    assert ours.dtype == theirs.dtype
    assert difference(to_numpy(ours), to_numpy(theirs)) <= tolerance


def test_rms_norm_has_the_gradients_of_keras():
    ours, theirs = (slopes(layer) for layer in rms_norms("float32"))
    assert len(ours) == 3
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_rms_norm_squares_in_float32():
    """The squares of these numbers are infinite in float16."""
    x = np.array([[300.0, -400.0]], "float16")
    np.testing.assert_allclose(to_numpy(RMSNorm(dtype="float16")(x)), [[0.8485, -1.1316]], atol=1e-3)


def test_gelu_is_that_of_keras():
    x = np.linspace(-9, 9, 1801, dtype="float32")
    exact = to_numpy(keras.ops.gelu(x, approximate=False))
    assert difference(to_numpy(get_activation("gelu")(x)), exact) <= 1e-6
    ours = slopes(keras.layers.Activation(get_activation("gelu")))
    theirs = slopes(keras.layers.Activation(lambda t: keras.ops.gelu(t, approximate=False)))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
