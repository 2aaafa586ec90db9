"""Entries at chosen positions, and the width of the last axis."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import ClassificationHead
from lmzoo.layers.rows import gather_positions, get_width


@pytest.mark.parametrize("rest", [(), (5,), (2, 7, 3)])
@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_entries_at_positions_equal_numpy(rest, dtype):
    rng = np.random.default_rng(0)
    x, positions = rng.normal(size=(3, 11, *rest)).astype(dtype), rng.integers(0, 11, (3, 13)).astype("int32")
    expected = np.stack([row[indices] for row, indices in zip(x, positions, strict=True)])
    entries = gather_positions(*map(keras.ops.convert_to_tensor, (x, positions)))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(entries), expected)


def test_width_must_be_known_to_create_weights():
    assert get_width((None, 7)) == 7
    with pytest.raises(ValueError, match=r"last axis must be known to create weights, got the shape \(2, None\)"):
        ClassificationHead(3, activation="tanh").build((2, None))
