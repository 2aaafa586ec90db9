"""Pooled vectors, and vectors of unit length."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import MaxPooler, MeanPooler, unit_vectors
from tests.reference.gradients import value_and_gradients


def test_the_maximum_is_over_real_tokens():
    sequence = np.random.default_rng(0).normal(size=(3, 5, 7)).astype("float32") - 4  # padding must not win as zeros
    sequence[0, 3:] = 9
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    pooled = keras.ops.convert_to_numpy(MaxPooler()(sequence, mask))
    np.testing.assert_array_equal(pooled, [sequence[0, :3].max(0), sequence[1].max(0), np.zeros(7)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_maximum_may_be_low_in_every_dtype(dtype):
    sequence = np.full((2, 3, 5), -300.0, "float32")
    pooled = MaxPooler(dtype=dtype)(sequence, np.array([[1, 0, 0], [0, 0, 0]]))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(keras.ops.cast(pooled, "float32"))[:, 0], [-300, 0])


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 3e-7), ("float16", 1e-3)])
def test_the_mean_of_many_large_vectors_is_finite(dtype, bound):
    sequence = np.full((2, 1009, 3), 211.0, "float32")
    mask = np.arange(1009) < np.array([[1009], [501]])
    pooled = MeanPooler(dtype=dtype)(keras.ops.cast(sequence, dtype), mask)
    assert keras.backend.standardize_dtype(pooled.dtype) == dtype
    np.testing.assert_allclose(keras.ops.convert_to_numpy(pooled), np.full((2, 3), 211.0), rtol=bound)


def gradient(function, x):
    return value_and_gradients(lambda x: keras.ops.sum(function(x)), x)[1][0]


def test_vectors_are_scaled_to_unit_length():
    x = np.array([[[3, 4, 0], [0, 0, 0]], [[0, -1e-3, 0], [1e18, 0, 0]]], "float32")
    expected = [[[0.6, 0.8, 0], [0, 0, 0]], [[0, -1, 0], [1, 0, 0]]]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(unit_vectors(x)), expected, atol=1e-6)
    assert keras.ops.dtype(unit_vectors(keras.ops.cast(x, "bfloat16"))) == "float32"


def test_gradients_are_finite_without_tokens():
    assert np.isfinite(gradient(unit_vectors, np.zeros((2, 3), "float32"))).all()
    mask = np.array([[1, 1, 0], [0, 0, 0]])
    actual = gradient(lambda x: MaxPooler()(x, mask), np.arange(30, dtype="float32").reshape(2, 3, 5))
    expected = np.zeros((2, 3, 5))
    expected[0, 1] = 1
    np.testing.assert_array_equal(actual, expected)
