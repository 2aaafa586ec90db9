"""Shared operations of the tokenizers' graphs."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from lmzoo.text.graphs.token_ops import compute_row_indices, indices_in_rows, repeat  # noqa: E402
from tests.memory import memory_grows_less_than  # noqa: E402


@pytest.mark.parametrize("lengths", [[], [0], [3], [0, 0, 2, 0, 5, 0], [1, 0, 0]], ids=str)
def test_row_and_index_of_each_token(lengths):
    lengths = np.array(lengths, "int64")
    ragged = tf.RaggedTensor.from_row_lengths(tf.range(lengths.sum()), lengths)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    np.testing.assert_array_equal(compute_row_indices(ragged), rows)
    np.testing.assert_array_equal(repeat(tf.range(len(lengths)), lengths), rows)
    np.testing.assert_array_equal(indices_in_rows(ragged), [i for length in lengths for i in range(length)])


def test_many_rows_take_little_memory():
    """TensorFlow's own functions take 2 GB here, and more for longer texts."""
    lengths = tf.concat([[100_000], tf.ones(20_000, tf.int64)], axis=0)
    ragged = tf.RaggedTensor.from_row_lengths(tf.zeros(120_000), lengths)
    with memory_grows_less_than(100 << 20):
        assert int(compute_row_indices(ragged)[-1]) == 20_000
        assert int(repeat(tf.range(20_001), lengths)[-1]) == 20_000
        assert int(indices_in_rows(ragged)[99_999]) == 99_999
