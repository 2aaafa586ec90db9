"""Merging choices into rows, and splitting rows into choices, of which some are padding."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import MergeChoices, SplitChoices

B, C, T, W = 2, 3, 5, 7
MASK = np.array([[[1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0] * 5], [[0] * 5] * 3])


def to_array(x):
    return keras.ops.convert_to_numpy(x)


@pytest.mark.parametrize("shape", [(B, C, T), (B, C, T, W)])
def test_merge_keeps_each_choice_together(shape):
    x = np.arange(np.prod(shape)).reshape(shape).astype("int32")
    merged = to_array(MergeChoices()(x))
    assert merged.shape == (B * C, *shape[2:])
    np.testing.assert_array_equal(merged[C + 1], x[1, 1])
    for before, after in (((None, C, None, W), (None, None, W)), ((B, C, T), (B * C, T))):
        symbolic = MergeChoices()(keras.KerasTensor(before, "int32"))
        assert (symbolic.shape, symbolic.dtype) == (after, "int32")


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_split_hides_choices_that_are_all_padding(policy):
    keras.config.set_dtype_policy(policy)
    try:
        layer = SplitChoices()
    finally:
        keras.config.set_dtype_policy("float32")
    scores = np.array([0.1, 1 / 3, 9.0, -7.0, 0.0, 5.0], "float32")[:, None]
    logits = layer(scores, MASK)
    np.testing.assert_array_equal(to_array(logits)[0, :2], scores[:2, 0])  # not rounded
    assert to_array(logits).dtype == "float32"
    probabilities = to_array(keras.ops.softmax(logits))
    assert probabilities[0, 2] == 0
    np.testing.assert_allclose(probabilities[1], 1 / 3, rtol=1e-6)
    for dtype in ("float16", "bfloat16"):
        assert np.isfinite(to_array(keras.ops.cast(keras.ops.cast(logits, dtype), "float32"))).all()
