"""Disentangled attention against loops over its formula, and the buckets of distances."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from lmzoo.layers import DisentangledAttention, DisentangledBlock, DistanceEmbedding
from lmzoo.layers.disentangled_attention import compute_buckets
from lmzoo.testing import randomize
from tests.reference.weights import difference, to_numpy

B, T, N, D = 3, 13, 5, 7
H = N * D
BUCKETS, FARTHEST = 5, 11
MASK = np.arange(T) < np.array([[13], [8], [1]])


def bucket(distance: int, bucket_size: int, max_distance: int) -> int:
    """Return the row of a distance, computed for one number like in the paper's code."""
    middle = bucket_size // 2
    steps = abs(distance)
    if steps > middle:
        ratio = np.log(np.float32(steps / middle)) / np.log(np.float32((max_distance - 1) / middle))
        steps = int(np.ceil(ratio * np.float32(middle - 1))) + middle
    return int(np.clip(bucket_size + np.sign(distance) * steps, 0, 2 * bucket_size - 1))


@pytest.mark.parametrize(("bucket_size", "max_distance"), [(256, 512), (11, 67), (5, 11), (6, 17), (7, 61), (4, 4)])
def test_buckets_equal_the_papers_code(bucket_size: int, max_distance: int) -> None:
    rows = compute_buckets(bucket_size, max_distance)
    longest = len(rows) // 2
    distances = range(-3 * longest, 3 * longest + 1)
    expected = [bucket(distance, bucket_size, max_distance) for distance in distances]
    assert [rows[np.clip(distance, -longest, longest) + longest] for distance in distances] == expected
    assert rows.dtype == "int32"


def test_buckets_may_exceed_all_distances() -> None:
    assert compute_buckets(256, 67).tolist() == [0, *range(128, 385), 511]
    assert len(compute_buckets(5, 1 << 40)) <= 2**17 + 3


def attention_and_inputs() -> tuple[DisentangledAttention, list[np.ndarray]]:
    rng = np.random.default_rng(1723)
    x = rng.normal(size=(B, T, H)).astype("float32")
    table = DistanceEmbedding(BUCKETS, FARTHEST)
    attention = DisentangledAttention(N, H)
    distances = table(x)
    attention(x, MASK, distances)
    randomize(table)
    randomize(attention)
    return attention, [x, MASK, to_numpy(table(x))]


def reference(attention: DisentangledAttention, x: np.ndarray, mask: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Return the attention probabilities (B, N, T, T), computed score by score."""

    def heads(layer: keras.layers.Dense, vectors: np.ndarray) -> np.ndarray:
        return (vectors @ to_numpy(layer.kernel) + to_numpy(layer.bias)).reshape(*vectors.shape[:-1], N, D)

    query, key = heads(attention.query, x), heads(attention.key, x)
    query_rows, key_rows = heads(attention.query, distances), heads(attention.key, distances)
    scores = np.full((B, N, T, T), -np.inf)
    for b, n, i, j in np.ndindex(B, N, T, T):
        if mask[b, j]:
            row = T - (i - j)
            q, k = query[b, i, n], key[b, j, n]
            scores[b, n, i, j] = (q @ k + q @ key_rows[row, n] + query_rows[row, n] @ k) / np.sqrt(3 * D)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def test_scores_follow_the_formula() -> None:
    attention, arguments = attention_and_inputs()
    assert difference(to_numpy(attention.scores(*arguments)), reference(attention, *arguments)) < 1e-5


def test_vectors_of_distances_are_normalized() -> None:
    x = np.zeros((1, T, H), "float32")
    table = DistanceEmbedding(BUCKETS, FARTHEST, layer_norm_epsilon=1e-5)
    table(x)
    randomize(table)
    weights = to_numpy(table.embeddings)
    normal = (weights - weights.mean(-1, keepdims=True)) / np.sqrt(weights.var(-1, keepdims=True) + 1e-5)
    normal = normal * to_numpy(table.layer_norm.gamma) + to_numpy(table.layer_norm.beta)
    rows = [bucket(T - row, BUCKETS, FARTHEST) for row in range(2 * T + 1)]
    assert difference(to_numpy(table(x)), normal[rows]) < 1e-5


@pytest.mark.parametrize("count", [1, 4, T])
def test_queries_at_positions_give_rows_of_the_whole_sequence(count: int) -> None:
    attention, (x, mask, distances) = attention_and_inputs()
    whole = to_numpy(attention(x, mask, distances))
    positions = np.random.default_rng(5).integers(0, T, (B, count)).astype("int32")
    queries = np.take_along_axis(x, positions[..., None], 1)
    rows = to_numpy(attention(x, mask, distances, queries, positions))
    assert difference(rows, np.take_along_axis(whole, positions[..., None], 1)) < 2e-6
    with pytest.raises(ValueError, match="`queries` need `positions`"):
        attention(x, mask, distances, queries)


def test_a_sequence_of_padding_and_one_of_one_token_are_finite() -> None:
    attention, (x, _, distances) = attention_and_inputs()
    assert np.isfinite(to_numpy(attention(x, np.zeros_like(MASK), distances))).all()
    table = DistanceEmbedding(BUCKETS, FARTHEST)
    assert np.isfinite(to_numpy(attention(x[:, :1], MASK[:, :1], table(x[:, :1])))).all()


def test_training_with_remat_reaches_the_table() -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(B, T, H)).astype("float32")
    inputs, mask = keras.Input((None, H)), keras.Input((None,), dtype="bool")
    table, block = DistanceEmbedding(BUCKETS, FARTHEST), DisentangledBlock(N, H, 17)
    model = keras.Model([inputs, mask], block(inputs, mask, table(inputs)))
    randomize(model)
    before = [to_numpy(weight) for weight in model.weights]
    after = []
    for remat in (False, True):
        block.remat = remat
        model.set_weights(before)
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=keras.backend.backend() == "tensorflow")
        model.fit([x, MASK], ops.zeros_like(x), batch_size=B, shuffle=False, verbose=0)
        after.append([to_numpy(weight) for weight in model.weights])
    assert difference(*after) < 1e-6
    changed = {
        w.path for w, initial in zip(model.weights, before, strict=True) if difference(to_numpy(w), initial) > 1e-6
    }
    assert changed == {w.path for w in model.weights}
