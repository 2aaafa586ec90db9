"""Initial values, and variables without them."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from lmzoo.layers.initializers import Orthogonal, TruncatedNormal, skip_initial_values
from tests.memory import memory_grows_less_than
from tests.reference.weights import to_numpy


def test_values_are_drawn_again_after_they_were_skipped():
    with skip_initial_values():
        keras.Variable(TruncatedNormal(stddev=0.5), shape=(7, 11))
    values = to_numpy(keras.Variable(TruncatedNormal(stddev=0.5), shape=(211, 223)).value)
    assert np.std(values) == pytest.approx(0.5 * 0.8796, rel=0.02)  # a normal distribution, cut at two deviations
    assert np.mean(values) == pytest.approx(0, abs=0.01)
    assert 0.999 < np.abs(values).max() <= 1


def test_values_follow_from_the_seed():
    first, same_seed, other_seed = (to_numpy(TruncatedNormal(seed=seed)((5, 7))) for seed in (3, 3, 11))
    np.testing.assert_array_equal(first, same_seed)
    assert (first != other_seed).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_skipped_values_can_be_assigned(dtype):
    with skip_initial_values():
        weight = keras.Variable(TruncatedNormal(), shape=(7, 11), dtype=dtype)
    assert (tuple(weight.shape), weight.dtype) == ((7, 11), dtype)
    weight.assign(np.full((7, 11), 3.0, "float32"))
    assert (to_numpy(weight.value) == 3).all()


def test_orthogonal_matrices_equal_those_of_keras_in_every_dtype():
    expected = to_numpy(keras.initializers.Orthogonal(seed=7)((5, 11)))
    np.testing.assert_array_equal(to_numpy(Orthogonal(seed=7)((5, 11))), expected)
    for dtype in ("float16", "bfloat16"):
        values = Orthogonal(seed=7)((5, 11), dtype)
        assert keras.backend.standardize_dtype(values.dtype) == dtype
        np.testing.assert_allclose(to_numpy(keras.ops.cast(values, "float32")), expected, atol=0.01)


@pytest.mark.tf_only
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_skipped_values_take_no_memory():
    """A checkpoint's values would otherwise be read beside the initial ones."""
    with skip_initial_values(), memory_grows_less_than(50_000_000):
        weight = keras.Variable(TruncatedNormal(), shape=(10_007, 10_009))  # 400 MB
    assert weight.shape == (10_007, 10_009)
