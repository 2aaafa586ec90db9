"""LAMB against numpy, following the paper and the published code; Adagrad on slices of a table."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.training import LAMB, Adagrad
from tests.reference.weights import to_numpy
from tests.training.updating import (
    ARGUMENTS,
    DECAYED,
    SHAPES,
    STEPS,
    apply_slices,
    assert_equal,
    gradient,
    start,
    train,
)


def clipped(step, norm):
    """Return a step's gradients by name, clipped to a total norm, and their norm before."""
    grads = dict(zip(SHAPES, gradient(step), strict=True))
    before = np.sqrt(sum((g.astype("float64") ** 2).sum() for g in grads.values()))
    return {name: g / max(before / norm, 1.0) for name, g in grads.items()}, before


def weights_in_numpy():
    return {name: to_numpy(v.value).astype("float64") for name, v in start().items()}


def lamb_in_numpy(bias_correction):
    weights, norms, ratios = weights_in_numpy(), [], []
    first, second = (dict.fromkeys(SHAPES, 0.0) for _ in range(2))
    for step in range(STEPS):
        grads, norm = clipped(step, 1.0)
        norms.append(norm)
        for name, g in grads.items():
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g * g
            scale = np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1)) if bias_correction else 1.0
            update, ratio = scale * first[name] / (np.sqrt(second[name]) + 1e-6), 1.0
            if name in DECAYED:
                update = update + 0.1 * weights[name]
                ratio = np.linalg.norm(weights[name]) / np.linalg.norm(update)
                ratios.append(ratio)
            weights[name] = weights[name] - 0.03 * ratio * update
    assert norms[0] > 1 > norms[-1]
    assert np.std(ratios) > 0.01
    return weights


@pytest.mark.parametrize("bias_correction", [False, True])
def test_lamb_equals_numpy(bias_correction):
    arguments = {"bias_correction": True} if bias_correction else {}
    assert_equal(train(LAMB(**ARGUMENTS, **arguments)), lamb_in_numpy(bias_correction))


def test_lamb_does_not_scale_updates_where_a_norm_is_zero():
    zero = keras.Variable(np.zeros((3, 2), "float32"), name="kernel")
    idle = keras.Variable(np.full((3, 2), 2.0, "float32"), name="idle_kernel")
    optimizer = LAMB(0.1, weight_decay=0.0)
    optimizer.build([zero, idle])
    optimizer.apply([keras.ops.ones((3, 2)), keras.ops.zeros((3, 2))])
    np.testing.assert_allclose(to_numpy(zero.value), -0.1 * 0.1 / np.sqrt(0.001), rtol=1e-4)
    np.testing.assert_array_equal(to_numpy(idle.value), 2.0)


def test_lamb_computes_norms_of_bfloat16_in_float32():
    wide = keras.Variable(keras.ops.ones((257, 131), "bfloat16"), dtype="bfloat16", name="kernel")
    optimizer = LAMB(0.25, weight_decay=0.0)
    optimizer.build([wide])
    optimizer.apply([keras.ops.ones((257, 131), "bfloat16")])
    # Entries are equal, so that each step is the rate. Norms summed in bfloat16 would end at 256.
    np.testing.assert_allclose(to_numpy(wide.value).astype("float32"), 0.75, atol=0.01)


@pytest.mark.tf_only
def test_adagrad_adds_the_slices_of_a_row():
    results = apply_slices(lambda: Adagrad(global_clipnorm=1.0))
    for actual, expected in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-7)
