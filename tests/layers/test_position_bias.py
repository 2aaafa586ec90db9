"""Biases by distance: their buckets, and attention with them."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest

from lmzoo.layers import RelativePositionBias, TransformerBlock, attention_probabilities
from lmzoo.layers.attention import join_projections
from tests.layers.test_attention import RIGHT_PADDED, B, H, N, T, layer_and_input
from tests.layers.test_transformer_block import block_and_input
from tests.reference.gradients import gradients
from tests.reference.weights import difference, to_numpy

LONG = 157
POSITIONS = np.array([[4, 0, 10], [2, 2, 7], [1, 3, 0]], "int32")


def bias_layer(num_heads=N, num_buckets=10, max_distance=19, **arguments):
    layer = RelativePositionBias(num_heads, num_buckets, max_distance, **arguments)
    layer.build((None, None, H))
    layer.embeddings.assign(np.random.default_rng(5).normal(size=(num_buckets, num_heads)).astype("float32"))
    return layer


def buckets(layer, length):
    """Return the bucket of each query and key."""
    numbers = np.arange(layer.num_buckets, dtype="float32")[:, None] + np.zeros(layer.num_heads, "float32")
    layer.embeddings.assign(numbers)
    return to_numpy(layer(np.zeros((B, length, H), "float32")))[0].astype(int)  # (N, T, T)


def expected_bucket(distance, num_buckets, max_distance, causal=False):
    """Return the bucket of a key at a distance after its query, by logarithms."""
    side = num_buckets if causal else num_buckets // 2
    distance = min(distance, 0) if causal else distance
    num_exact, steps = side // 2, abs(distance)
    if steps >= num_exact:
        ratio = math.log(steps / num_exact) / math.log(max_distance / num_exact)
        # Bounds may have been rounded down.
        steps = min(num_exact + math.floor(ratio * (side - num_exact) + 1e-9), side - 1)
    return steps + side * (distance > 0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (10, 19), (4, 7), (6, 128)])
def test_buckets_grow_logarithmically(num_buckets, max_distance, causal):
    by_distance = {d: expected_bucket(d, num_buckets, max_distance, causal) for d in range(-LONG, LONG)}
    expected = np.array([[by_distance[key - query] for key in range(LONG)] for query in range(LONG)])
    actual = buckets(bias_layer(3, num_buckets, max_distance, causal=causal), LONG)
    assert np.array_equal(actual, np.broadcast_to(expected, (3, LONG, LONG)))
    unused = set() if causal else {num_buckets // 2}  # no key after its query is at a distance of 0
    assert {*actual.flat} == {*range(num_buckets)} - unused


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_the_bias_of_a_step_has_its_rows(causal, dtype):
    layer = bias_layer(causal=causal, dtype=dtype)
    bias = layer(np.zeros((B, 29, H), "float32"))
    for index in (0, 23, keras.ops.convert_to_tensor(17)):
        rows = to_numpy(keras.ops.cast(bias, "float32"))[:, :, int(index) : int(index) + 6]
        assert difference(to_numpy(keras.ops.cast(layer.step_bias(index, 6, 29), "float32")), rows) == 0


def test_chosen_positions_get_their_rows():
    layer, x = bias_layer(), np.zeros((B, T, H), "float32")
    expected = to_numpy(layer(x))[0][:, POSITIONS]  # (N, B, M, T)
    assert difference(to_numpy(layer(x, POSITIONS)), np.moveaxis(expected, 1, 0)) == 0


@pytest.mark.parametrize("length", [1, 2])
def test_short_sequences_have_a_bias(length):
    layer = bias_layer()
    bias = to_numpy(layer(np.zeros((B, length, H), "float32")))
    assert bias.shape == (1, N, length, length)
    table = to_numpy(layer.embeddings)
    np.testing.assert_array_equal(bias[0][:, np.arange(length), np.arange(length)], np.tile(table[:1].T, length))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_buckets": 7}, "`num_buckets` must be an even integer of at least 4, got 7"),
        ({"num_buckets": 2}, "`num_buckets` must be an even integer of at least 4, got 2"),
        ({"max_distance": 8}, "`max_distance` must be an integer of at least 9, got 8"),
        ({"max_distance": 16, "causal": True}, "`max_distance` must be an integer of at least 17, got 16"),
    ],
)
def test_sizes_out_of_range_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        RelativePositionBias(N, **sizes)


# === Attention ===


def biased_probabilities(query, key, mask, bias):
    """Return the softmax of the formula's scores, in float64."""
    scores = np.einsum("bnsd,bntd->bnst", query, key) / np.sqrt(query.shape[-1]) + bias
    scores = np.where(mask[:, None, None], scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True)


def test_a_bias_is_added_to_the_scores():
    rng = np.random.default_rng(11)
    query, key = rng.normal(size=(2, 2, N, T, 7)).astype("float32")
    mask = RIGHT_PADDED[:2]
    for batch in (1, 2):
        bias = rng.normal(size=(batch, N, T, T)).astype("float32")
        probabilities = to_numpy(attention_probabilities(query, key, mask, bias=bias))
        assert difference(probabilities, biased_probabilities(query, key, mask, bias)) <= 1e-6


def test_half_precision_adds_the_bias_in_float32():
    rng = np.random.default_rng(13)
    query, key = (keras.ops.cast(x, "bfloat16") for x in rng.normal(size=(2, 2, N, T, 7)))
    bias = rng.normal(0, 5, size=(1, N, T, T)).astype("float32")
    probabilities = to_numpy(attention_probabilities(query, key, RIGHT_PADDED[:2], bias=bias))
    exact = [to_numpy(keras.ops.cast(x, "float32")) for x in (query, key)]
    assert difference(probabilities, biased_probabilities(*exact, RIGHT_PADDED[:2], bias)) <= 0.01


def test_attention_uses_the_biased_probabilities():
    layer, x = layer_and_input()
    bias = bias_layer()(x)
    probabilities = to_numpy(layer.scores(x, RIGHT_PADDED, bias=bias))
    assert difference(probabilities, to_numpy(layer.scores(x, RIGHT_PADDED))) > 0.1
    value = to_numpy(layer.value(x)).reshape(B, T, N, -1)
    context = np.einsum("bnts,bsnd->btnd", probabilities, value).reshape(B, T, H)
    assert difference(to_numpy(layer(x, RIGHT_PADDED, bias=bias)), to_numpy(layer.output_dense(context))) <= 1e-5


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_block_has_the_bias_at_chosen_positions(norm):
    block, x = block_and_input(norm=norm)
    layer = bias_layer()
    outputs = to_numpy(block(x, RIGHT_PADDED, bias=layer(x)))
    assert difference(outputs, to_numpy(block(x, RIGHT_PADDED))) > 0.01
    queries = np.take_along_axis(x, POSITIONS[:, :, None], axis=1)
    rows = to_numpy(block(x, RIGHT_PADDED, queries, bias=layer(x, POSITIONS)))
    assert difference(rows, np.take_along_axis(outputs, POSITIONS[:, :, None], axis=1)) <= 1e-5
    scores = to_numpy(block.attention_scores(x, RIGHT_PADDED, layer(x)))
    assert difference(scores, to_numpy(block.attention_scores(x, RIGHT_PADDED))) > 0.01


@pytest.mark.tf_only
def test_joined_kernels_add_the_bias():
    import tensorflow as tf

    layer, x = layer_and_input()
    bias = bias_layer()(x)
    with join_projections([layer]):
        function = tf.function(lambda: layer(x, RIGHT_PADDED, bias=bias))
        assert difference(to_numpy(function()), to_numpy(layer(x, RIGHT_PADDED, bias=bias))) <= 1e-5


def test_fused_kernels_are_not_used_with_a_bias(monkeypatch):
    """Fused kernels take no bias."""
    monkeypatch.setattr("lmzoo.layers.attention._uses_fused_kernel", lambda query, key: True)
    layer, x = layer_and_input()
    expected = to_numpy(layer(x, RIGHT_PADDED, bias=bias_layer()(x)))
    monkeypatch.undo()
    assert difference(expected, to_numpy(layer(x, RIGHT_PADDED, bias=bias_layer()(x)))) == 0


class Biased(keras.Model):
    """A model of two blocks that share a bias, in training."""

    def __init__(self, remat):
        super().__init__()
        self.position_bias = bias_layer()
        self.blocks = [TransformerBlock(N, H, 13, dropout=0.3, name=f"block_{i}") for i in range(2)]
        for seed, block in enumerate(self.blocks):
            block.remat = remat
            block.build((None, None, H))
            rng = np.random.default_rng(seed)
            for weight in block.weights:
                weight.assign(rng.normal(0, 0.3, weight.shape).astype("float32"))
        self.built = True

    def call(self, inputs):
        x, mask = inputs
        bias = self.position_bias(x)
        for block in self.blocks:
            x = block(x, mask, bias=bias, training=True)
        return keras.ops.sum(x**2)


def test_remat_does_not_change_gradients():
    x = np.random.default_rng(3).normal(size=(B, T, H)).astype("float32")
    results = []
    for remat in (False, True):
        keras.utils.set_random_seed(23)
        model = Biased(remat)
        by_path = gradients(model, lambda loss: loss, (x, RIGHT_PADDED))
        results.append([*by_path.values()])
    index = [*by_path].index(model.position_bias.embeddings.path)
    assert np.abs(results[0][index]).max() > 0.01
    for expected, actual in zip(*results, strict=True):
        assert difference(actual, expected) <= 1e-4 * max(1, np.abs(expected).max())
