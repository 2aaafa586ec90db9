"""Static vectors of words that are looked up by two hashes of their characters."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers.word_features import StaticWordFeatures
from tests.reference.weights import to_numpy

FIRST_MULTIPLIER = 0x01000193  # of the first hash, sum((id - 261) * multiplier ** position) modulo 2 ** 32


def collide(ids, count):
    """Return `count` words of two character ids that share the first hash of `ids` and differ in the second."""
    return [[ids[0] + step * FIRST_MULTIPLIER, ids[1] - step] for step in range(count)]


def test_words_with_equal_first_hashes_have_their_vectors():
    collisions = collide([300, 290], 5)
    words = [[271, 263], *collisions[:4], [265, 277], [283, 262]]
    vectors = np.arange(1, 1 + 7 * 3, dtype="float32").reshape(7, 3)
    layer = StaticWordFeatures(8, 3)
    layer.build((1, 9, 2), (1, 9, 2))
    layer.assign_words(np.array(words, "int32"), vectors)
    hashes = keras.ops.convert_to_numpy(layer.hashes)
    assert sorted(np.unique(hashes[1:, 0], return_counts=True)[1]) == [1, 1, 1, 4]
    assert len(np.unique(hashes[1:, 1])) == 7
    texts = np.array([[*words, collisions[4], [270, 270]]], "int32")
    outputs = to_numpy(layer(np.zeros((1, 9, 2), "float32"), texts))
    np.testing.assert_array_equal(outputs[0, :, 2:], [*vectors, np.zeros(3), np.zeros(3)])


def test_too_many_words_with_equal_first_hashes_are_refused():
    layer = StaticWordFeatures(6, 3)
    layer.build((1, 1, 2), (1, 1, 2))
    with pytest.raises(ValueError, match="5 words have the same hash, and at most 4 can be told apart"):
        layer.assign_words(np.array(collide([300, 290], 5), "int32"), np.ones((5, 3), "float32"))


def test_the_first_of_words_with_equal_hashes_is_found():
    layer = StaticWordFeatures(4, 5)
    layer.build((1, 1, 2), (1, 1, 2))
    vectors = np.arange(1, 1 + 3 * 5, dtype="float32").reshape(3, 5)
    layer.assign_words(np.array([[271, 263], [300, 290], [300, 290]], "int32"), vectors)
    outputs = to_numpy(layer(np.zeros((1, 1, 2), "float32"), np.array([[[300, 290]]], "int32")))
    np.testing.assert_array_equal(outputs[0, :, 2:], vectors[1:2])
