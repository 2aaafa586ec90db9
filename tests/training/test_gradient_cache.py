"""Gradient caching: the gradients of a large batch from mini-batches, with the same dropout in both computations."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import Dropout
from lmzoo.layers.remat import get_seeds
from lmzoo.training import gradient_cache
from lmzoo.training.gradient_cache import compute_in_mini_batches
from tests.reference.weights import to_numpy

COUNT, WIDTH, UNITS = 11, 7, 5
X = np.random.default_rng(3).normal(size=(COUNT, WIDTH)).astype("float32")


class Encoder(keras.layers.Layer):
    """A dense layer and dropout, computed in mini-batches of `size` rows."""

    def __init__(self, size, rate=0.5, dtype="float32"):
        super().__init__(dtype=dtype)
        self.size = size
        initializer = keras.initializers.RandomNormal(seed=5)
        self.dense = keras.layers.Dense(UNITS, kernel_initializer=initializer, dtype=dtype)
        self.dropout = Dropout(rate, seed=17)
        self.calls = 0

    def build(self, shape):
        self.dense.build(shape)

    def compute(self, inputs):
        self.calls += 1
        return self.dropout(self.dense(inputs["x"]), training=True)

    def call(self, x):
        return compute_in_mini_batches(self, self.compute, {"x": x}, self.size)


def loss_of(vectors):
    """Return a loss that depends on all pairs of rows."""
    return keras.ops.sum(keras.ops.square(keras.ops.matmul(vectors, keras.ops.transpose(vectors)) - 0.3))


def gradients(layer, x=X, loss_of=loss_of):
    """Return the outputs, the gradients of the weights, and the seeds after one step."""
    layer.build(x.shape)
    seeds = get_seeds(layer)  # none without dropout
    for seed in seeds:
        seed.assign(np.array([17, 0], seed.dtype))
    if keras.backend.backend() == "jax":
        import jax

        def loss(weights, state):
            vectors, state = layer.stateless_call(weights, state, x)
            return loss_of(vectors), (vectors, state)

        weights, state = (
            [v.value for v in part] for part in (layer.trainable_variables, layer.non_trainable_variables)
        )
        weight_gradients, (vectors, state) = jax.jit(jax.grad(loss, has_aux=True))(weights, state)
        return to_numpy(vectors), to_numpy(weight_gradients), [to_numpy(v).tolist() for v in state]
    tf = pytest.importorskip("tensorflow")

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def step(x):
        with tf.GradientTape() as tape:
            vectors = layer(tf.ensure_shape(x, [None, WIDTH]))
            value = loss_of(vectors)
        return vectors, tape.gradient(value, layer.trainable_variables)

    vectors, weight_gradients = step(tf.constant(x))
    return vectors.numpy(), to_numpy(weight_gradients), [to_numpy(v.value).tolist() for v in seeds]


@pytest.mark.parametrize("size", [3, 5])
def test_gradients_equal_those_of_the_whole_batch(size):
    vectors, actual, _ = gradients(Encoder(size, rate=0.0))
    expected_vectors, expected, _ = gradients(Encoder(COUNT, rate=0.0))
    np.testing.assert_allclose(vectors, expected_vectors, atol=1e-6)
    for value, desired in zip(actual, expected, strict=True):
        assert np.abs(desired).max() > 0.1
        np.testing.assert_allclose(value, desired, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_gradients_are_added_in_float32(dtype):
    """In bfloat16 a sum of ones stops at 256."""
    count = 262
    layer = Encoder(1, rate=0.0, dtype=dtype)
    _, actual, _ = gradients(layer, np.ones((count, WIDTH), "float32"), keras.ops.sum)
    for value in actual:
        assert value.dtype == "float32"
        np.testing.assert_array_equal(value, np.full(value.shape, count))


def test_both_computations_have_the_same_dropout(monkeypatch):
    vectors, recomputed, seed = gradients(Encoder(3))
    assert seed == [[17, 4]]  # four mini-batches of three rows
    monkeypatch.setattr(gradient_cache, "recompute_in_backward", lambda layer, function: function())
    stored_vectors, stored, stored_seed = gradients(Encoder(3))  # activations are stored
    np.testing.assert_array_equal(vectors, stored_vectors)
    assert seed == stored_seed
    for value, desired in zip(recomputed, stored, strict=True):
        np.testing.assert_allclose(value, desired, rtol=1e-5, atol=1e-5)
    assert 0 < np.mean(vectors == 0) < 1
    is_kept = [vectors[start : start + 3] != 0 for start in (0, 3, 6)]
    assert not (is_kept[0] == is_kept[1]).all(), "all mini-batches have the same mask"


def test_a_small_batch_is_one_mini_batch():
    layer = Encoder(COUNT)
    _, _, seed = gradients(layer)
    assert seed == [[17, 1]]
