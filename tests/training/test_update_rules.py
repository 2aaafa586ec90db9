"""LAMB against numpy, following the paper and the published code."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.training import LAMB
from tests.reference.weights import to_numpy
from tests.training.updating import ARGUMENTS, assert_equal, train, train_in_numpy


@pytest.mark.parametrize("bias_correction", [False, True])
def test_lamb_equals_numpy(bias_correction):
    arguments = {"bias_correction": True} if bias_correction else {}
    assert_equal(train(LAMB(**ARGUMENTS, **arguments)), train_in_numpy(bias_correction, scales_updates=True))


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
