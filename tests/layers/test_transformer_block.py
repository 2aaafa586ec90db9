"""The places of the norms in blocks and embeddings, and a block's cache, source and dropout."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import LayerNorm, TransformerBlock, TransformerEmbedding
from tests.layers.test_attention import RIGHT_PADDED, STEPS, B, H, N, T, compiled, run_with_cache
from tests.reference.weights import difference, to_numpy

I, V = 43, 31  # noqa: E741 - widths, see the layers' shape comments


def block_and_input(**arguments):
    block = TransformerBlock(N, H, I, layer_norm_epsilon=1e-5, **arguments)
    block.build((None, None, H))
    rng = np.random.default_rng(7)
    for weight in block.weights:
        weight.assign(rng.normal(0, 0.3, weight.shape).astype("float32"))
    return block, rng.normal(size=(B, T, H)).astype("float32")


def normalized(layer, x):
    centered = x - x.mean(-1, keepdims=True)
    x = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    return x * to_numpy(layer.gamma) + to_numpy(layer.beta)


def feed_forward(block, x):
    return to_numpy(block.output_dense(keras.ops.gelu(block.intermediate_dense(x), approximate=False)))


@pytest.mark.parametrize("mask", ["padding", "causal"])
def test_norms_are_after_or_before_the_sublayers(mask):
    block, x = block_and_input(norm="post", mask=mask)
    first, second = block.attention_layer_norm, block.output_layer_norm
    a = normalized(first, x + to_numpy(block.attention(x, RIGHT_PADDED)))
    assert difference(to_numpy(block(x, RIGHT_PADDED)), normalized(second, a + feed_forward(block, a))) <= 1e-4
    before, _ = block_and_input(norm="pre", mask=mask)
    a = x + to_numpy(block.attention(normalized(first, x), RIGHT_PADDED))
    assert difference(to_numpy(before(x, RIGHT_PADDED)), a + feed_forward(block, normalized(second, a))) <= 1e-4


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_queries_give_the_vectors_at_their_positions(norm):
    block, x = block_and_input(norm=norm)
    vectors = to_numpy(block(x, RIGHT_PADDED, x[:, 3:5]))
    assert difference(vectors, to_numpy(block(x, RIGHT_PADDED))[:, 3:5]) <= 1e-5


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_attention_scores_are_of_the_normalized_inputs(norm):
    block, x = block_and_input(norm=norm)
    inputs = x if norm == "post" else normalized(block.attention_layer_norm, x)
    expected = to_numpy(block.attention.scores(inputs, RIGHT_PADDED))
    assert difference(to_numpy(block.attention_scores(x, RIGHT_PADDED)), expected) <= 1e-5


@pytest.mark.quick_cases("pre")
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_cache_does_not_change_the_outputs(norm):
    block, x = block_and_input(norm=norm, mask="causal")
    call = compiled(block)
    for mask in (RIGHT_PADDED | True, RIGHT_PADDED):
        outputs, _ = run_with_cache(call, block.attention.empty_cache(B, T), x, mask, STEPS["one by one"])
        assert difference(outputs, to_numpy(block(x, mask))) <= 1e-5


def test_shapes_with_a_cache_are_declared():
    block, _ = block_and_input(mask="causal")
    inputs = keras.KerasTensor((B, 2, H)), keras.KerasTensor((B, T), "bool")
    cache = tuple(keras.KerasTensor(tensor.shape) for tensor in block.attention.empty_cache(B, T))
    for layer in (block, block.attention):
        output, new_cache = layer(*inputs, cache=cache, index=3)
        assert output.shape == (B, 2, H)
        assert [tensor.shape for tensor in new_cache] == [tensor.shape for tensor in cache]


def test_other_places_of_the_norms_are_refused():
    with pytest.raises(ValueError, match='`norm` must be "post" or "pre", got \'both\''):
        TransformerBlock(N, H, I, norm="both")
    config = TransformerBlock(N, H, I, norm="pre", mask="causal").get_config()
    assert (config["norm"], config["mask"]) == ("pre", "causal")
    assert TransformerBlock.from_config(config).get_config() == config


def test_embeddings_with_and_without_a_norm():
    with_norm, without = (
        TransformerEmbedding(V, H, T, num_segments=0, normalize=normalize) for normalize in (True, False)
    )
    for layer in (with_norm, without):
        layer.build((None, None))
    names = [weight.path.partition("/")[2] for weight in with_norm.weights]
    assert names[-2:] == ["layer_norm/gamma", "layer_norm/beta"]
    assert [weight.path.partition("/")[2] for weight in without.weights] == names[:-2]
    for weight, value in zip(without.weights, with_norm.weights, strict=False):
        weight.assign(value)
    ids = np.arange(B * T).reshape(B, T) % V
    norm = LayerNorm(epsilon=1e-12)
    assert difference(to_numpy(with_norm(ids)), to_numpy(norm(without(ids)))) <= 1e-5
    assert TransformerEmbedding.from_config(without.get_config()).get_config() == without.get_config()


@pytest.mark.parametrize("names", [[], ["source"], ["source_mask"]])
def test_a_source_and_its_mask_belong_together(names):
    block, x = block_and_input(reads_source=True)
    arguments = {name: {"source": x, "source_mask": RIGHT_PADDED}[name] for name in names}
    with pytest.raises(ValueError, match="reads a source needs `source` and `source_mask`"):
        block(x, RIGHT_PADDED, **arguments)


@pytest.mark.parametrize("attention_norm", [True, False])
def test_a_gated_block_without_biases(attention_norm):
    block, x = block_and_input(norm="pre", use_bias=False, gated=True, attention_norm=attention_norm)
    names = {weight.name for weight in block.weights}
    assert names == {"kernel", "gamma"}
    assert len(block.weights) == 8 + attention_norm
    plain = [to_numpy(layer.kernel) for layer in (block.intermediate_dense, block.gate_dense, block.output_dense)]

    def scaled(layer, x):
        centered = x - x.mean(-1, keepdims=True)
        return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * to_numpy(layer.gamma)

    first = scaled(block.attention_layer_norm, x) if attention_norm else x
    a = x + to_numpy(block.attention(first, RIGHT_PADDED))
    y = scaled(block.output_layer_norm, a)
    hidden = to_numpy(keras.ops.gelu(y @ plain[0], approximate=False)) * (y @ plain[1])
    assert difference(to_numpy(block(x, RIGHT_PADDED)), a + hidden @ plain[2]) <= 1e-4
    expected = to_numpy(block.attention.scores(first, RIGHT_PADDED))
    assert difference(to_numpy(block.attention_scores(x, RIGHT_PADDED)), expected) <= 1e-6
    assert TransformerBlock.from_config(block.get_config()).get_config() == block.get_config()


def test_only_norms_before_the_sublayers_may_be_omitted():
    with pytest.raises(ValueError, match='without `attention_norm` has `norm="pre"`'):
        TransformerBlock(N, H, I, attention_norm=False)


@pytest.mark.parametrize("remat", [False, True])
def test_queries_of_a_local_block_have_positions(remat):
    block, x = block_and_input(norm="pre", window=5)
    block.remat = remat
    positions = np.array([[7, 1], [5, 5], [0, 3]], "int32")
    chosen = np.take_along_axis(x, positions[:, :, None], axis=1)
    vectors = to_numpy(block(x, RIGHT_PADDED, chosen, positions=positions, training=True))
    expected = np.take_along_axis(to_numpy(block(x, RIGHT_PADDED)), positions[:, :, None], axis=1)
    assert difference(vectors, expected) <= 1e-5
    symbolic = keras.KerasTensor((B, T, H)), keras.KerasTensor((B, T), "bool"), keras.KerasTensor((B, 2, H))
    assert block(*symbolic).shape == (B, 2, H)


def test_embeddings_without_a_table_of_positions_have_a_limit():
    layer = TransformerEmbedding(V, H, T, num_segments=0, position_table=False, use_bias=False)
    layer.build((None, None))
    names = [weight.path.partition("/")[2] for weight in layer.weights]
    assert names == ["token_embedding/embeddings", "layer_norm/gamma"]
    ids = np.arange(B * T).reshape(B, T) % V
    vectors = to_numpy(layer(ids))
    assert difference(vectors, to_numpy(layer.layer_norm(layer.token_embedding(ids)))) <= 1e-6
    with pytest.raises(ValueError, match=f"{T + 1} tokens long, but the model has positions for {T}"):
        layer(np.zeros((B, T + 1), "int32"))
    assert TransformerEmbedding.from_config(layer.get_config()).get_config() == layer.get_config()


def test_a_decoder_block_equals_numpy():
    """RMSNorm before the sublayers, wide heads, unscaled scores, a bias, and a source."""
    options = {"use_bias": False, "rms_norm": True, "head_dim": 5, "attention_scale": 1.0, "reads_source": True}
    block, x = block_and_input(norm="pre", mask="causal", activation="relu", **options)
    source = np.random.default_rng(3).normal(size=(B, 4, H)).astype("float32")
    source_mask = np.arange(4) < np.array([4, 1, 3])[:, None]
    bias = np.random.default_rng(4).normal(size=(1, N, T, T)).astype("float32")
    assert {weight.name for weight in block.weights} == {"kernel", "gamma"}
    assert block.attention.query.kernel.shape == (H, 5 * N)

    def scaled(layer, x):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * to_numpy(layer.gamma)

    def attended(layer, x, keys, visible, bias):
        query, key, value = (
            (part @ to_numpy(dense.kernel)).reshape(B, -1, N, 5)
            for part, dense in ((x, layer.query), (keys, layer.key), (keys, layer.value))
        )
        scores = np.where(visible, np.einsum("bsnd,btnd->bnst", query, key) + bias, -1e9)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("bnst,btnd->bsnd", weights, value).reshape(B, T, -1) @ to_numpy(layer.output_dense.kernel)

    first = scaled(block.attention_layer_norm, x)
    visible = RIGHT_PADDED[:, None, None] & np.tri(T, dtype=bool)
    a = x + attended(block.attention, first, first, visible, bias)
    second = scaled(block.source_layer_norm, a)
    a = a + attended(block.source_attention, second, source, source_mask[:, None, None], 0)
    hidden = np.maximum(scaled(block.output_layer_norm, a) @ to_numpy(block.intermediate_dense.kernel), 0)
    expected = a + hidden @ to_numpy(block.output_dense.kernel)
    arguments = {"source": source, "source_mask": source_mask, "bias": bias}
    real = RIGHT_PADDED
    assert difference(to_numpy(block(x, real, **arguments))[real], expected[real]) <= 1e-4
    assert difference(to_numpy(block.attend_to_itself(x, real, bias))[real], second[real]) <= 1e-4
    arguments |= {"source": block.source_attention.keys_and_values(source)}
    assert difference(to_numpy(block(x, real, **arguments))[real], expected[real]) <= 1e-4
    assert TransformerBlock.from_config(block.get_config()).get_config() == block.get_config()


@pytest.mark.parametrize("dtype", ["float16", "mixed_float16"])
def test_sums_of_t5_stay_finite_in_float16(dtype):
    block, x = block_and_input(norm="pre", rms_norm=True, use_bias=False, reads_source=True, dtype=dtype)
    for dense in (block.attention.output_dense, block.source_attention.output_dense, block.output_dense):
        dense.kernel.assign(np.full(dense.kernel.shape, 3e4))
    source, source_mask = x[:, :4], np.ones((B, 4), bool)
    outputs = to_numpy(block(x, np.ones((B, T), bool), source=source, source_mask=source_mask))
    assert np.isfinite(outputs).all()
    assert np.abs(outputs).max() == 64_512  # 64,504 in float16


@pytest.mark.parametrize(("hidden_dropout", "kept_fraction"), [(False, 0.6), (True, 0.36)])
def test_the_hidden_layer_may_have_dropout(hidden_dropout, kept_fraction):
    """Each output is one unit of the hidden layer, which one or two dropouts may set to zero."""
    keras.utils.set_random_seed(5)
    block = TransformerBlock(N, H, H, "relu", 0.4, norm="pre", use_bias=False, hidden_dropout=hidden_dropout)
    block.build((None, None, H))
    for weight in block.weights:
        weight.assign(np.zeros(weight.shape) if "output_dense" in weight.path else np.ones(weight.shape))
    block.output_dense.kernel.assign(np.eye(H))
    x = np.tile(np.arange(H, dtype="float32") ** 2, (1, 401, 1))
    block.output_layer_norm.gamma.assign(np.arange(H) == H - 1)  # one input, so that the hidden layer is positive
    differences = to_numpy(block(x, np.ones((1, 401), bool), training=True)) - x
    assert abs((differences != 0).mean() - kept_fraction) < 0.03
