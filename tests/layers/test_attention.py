"""Self-attention: masks, precision, memory, causality and the cache."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import SelfAttention, attention_probabilities
from lmzoo.layers.attention import join_projections
from tests.reference.weights import difference, relative_difference, to_numpy

B, T, N, D = 3, 11, 5, 7
H = N * D
LENGTHS = np.array([11, 6, 0])
RIGHT_PADDED = np.arange(T) < LENGTHS[:, None]
WITH_HOLES = RIGHT_PADDED & (np.arange(T) != 2)

jax_only = pytest.mark.skipif(keras.backend.backend() != "jax", reason="needs the JAX backend")


def heads(seed=0, dtype="float32"):
    rng = np.random.default_rng(seed)
    return [keras.ops.cast(rng.normal(size=(B, N, T, D)).astype("float32"), dtype) for _ in range(3)]


def layer_and_input(**kwargs):
    layer = SelfAttention(N, H, **kwargs)
    layer.build((None, None, H))
    rng = np.random.default_rng(3)
    for weight in layer.weights:
        weight.assign(rng.normal(0, 0.3, weight.shape).astype("float32"))
    return layer, rng.normal(size=(B, T, H)).astype("float32")


@pytest.mark.parametrize("mask", [RIGHT_PADDED, WITH_HOLES], ids=["right_padded", "with_holes"])
def test_probabilities_sum_to_one_over_real_tokens_and_are_zero_elsewhere(mask):
    query, key, _ = heads()
    probabilities = to_numpy(attention_probabilities(query, key, mask))
    assert probabilities.shape == (B, N, T, T)
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, atol=1e-6)
    has_tokens = mask.any(1)
    assert (probabilities[has_tokens] * ~mask[has_tokens, None, None, :] == 0.0).all()
    np.testing.assert_allclose(probabilities[~has_tokens], 1 / T, atol=1e-7)  # without tokens: uniform and finite


def test_queries_give_the_rows_at_their_positions():
    layer, x = layer_and_input()
    positions = np.array([[4, 0], [2, 2], [1, 3]])[:, :, None]
    rows = to_numpy(layer(x, WITH_HOLES, np.take_along_axis(x, positions, axis=1)))
    expected = np.take_along_axis(to_numpy(layer(x, WITH_HOLES)), positions, axis=1)
    assert relative_difference(rows, expected) <= 1e-6


def shapes_in_graph(function, *arguments):
    """Return (shape, dtype) of every tensor that `function` makes, including inner calls."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        specs = [tf.TensorSpec(a.shape, a.dtype) for a in arguments]
        graph = tf.function(function).get_concrete_function(*specs).graph
        graphs = [graph, *(f.graph for f in graph._functions.values() if hasattr(f, "graph"))]
        return [(tuple(t.shape), t.dtype.name) for g in graphs for op in g.get_operations() for t in op.outputs]
    if keras.backend.backend() == "jax":
        import jax

        def walk(jaxpr):
            for equation in jaxpr.eqns:
                yield from (v.aval for v in equation.outvars)
                for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
                    inner = getattr(inner, "jaxpr", inner)
                    if hasattr(inner, "eqns"):
                        yield from walk(inner)

        return [(tuple(a.shape), a.dtype.name) for a in walk(jax.make_jaxpr(function)(*arguments).jaxpr)]
    return pytest.skip(f"graphs of {keras.backend.backend()} cannot be inspected")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_softmax_is_computed_in_float32(dtype):
    query, key, _ = heads(dtype=dtype)
    shapes = shapes_in_graph(attention_probabilities, query, key, RIGHT_PADDED)
    assert ((B, N, T, T), "float32") in shapes
    probabilities = attention_probabilities(query, key, RIGHT_PADDED)
    assert keras.backend.standardize_dtype(probabilities.dtype) == dtype
    exact = attention_probabilities(*(keras.ops.cast(x, "float32") for x in (query, key)), RIGHT_PADDED)
    assert difference(to_numpy(probabilities), to_numpy(exact)) <= 0.01


def test_no_mask_has_all_pairs_of_positions():
    layer, x = layer_and_input()
    shapes = shapes_in_graph(lambda x, mask: layer(x, mask), x, RIGHT_PADDED)
    square_shapes = {shape for shape, _ in shapes if shape[-2:] == (T, T)}
    assert square_shapes == {(B, N, T, T)}  # the scores; a mask would be (B, T, T) or (B, 1, T, T)
    assert not [shape for shape, dtype in shapes if dtype == "bool" and len(shape) > 2 and shape.count(T) > 1]


def test_the_graph_shows_a_mask_of_all_pairs():
    def add_mask_token(x, mask):
        return x * keras.ops.cast(mask[:, :, None] & mask[:, None, :], "float32")

    shapes = shapes_in_graph(add_mask_token, np.ones((B, 1, 1), "float32"), RIGHT_PADDED)
    assert ((B, T, T), "bool") in shapes


@jax_only
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [RIGHT_PADDED, WITH_HOLES], ids=["right_padded", "with_holes"])
def test_attention_by_length_equals_the_standard_form(mask, causal):
    import jax

    from lmzoo.layers.attention import attention_by_length

    count = 2 if causal else B  # a sequence without keys would lead to the standard form
    query, key, value = (x[:count] for x in heads())
    mask = mask[:count]
    outputs = np.asarray(jax.jit(attention_by_length, static_argnums=4)(query, key, value, mask, causal))
    positions = np.arange(T) if causal else None
    expected = to_numpy(attention_probabilities(query, key, mask, positions)) @ to_numpy(value)
    assert np.isfinite(outputs).all()
    has_tokens = mask.any(1)
    assert difference(outputs[has_tokens], expected[has_tokens]) <= 1e-5
    gradient = jax.grad(lambda q: jax.numpy.sum(attention_by_length(q, key, value, mask, causal) ** 2))(query)
    assert np.isfinite(gradient).all()


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match=r"hidden_dim.*36.*multiple.*num_heads.*5"):
        SelfAttention(5, 36)


@jax_only
def test_attention_by_length_stores_no_probabilities(monkeypatch):
    """For the gradient, the branch not taken would store as much as the one taken."""
    import jax

    from lmzoo.layers.attention import attention_by_length

    query = np.ones((3, 2, 64, 5), "float32")
    mask = np.ones((3, 64), bool)

    def memory():
        loss = jax.grad(lambda q: attention_by_length(q, q, q, mask).sum())
        return jax.jit(loss).lower(query).compile().memory_analysis().temp_size_in_bytes

    memory_with_checkpoints = memory()
    monkeypatch.setattr(jax, "checkpoint", lambda function: function)
    assert memory_with_checkpoints < memory()


@pytest.mark.parametrize(
    ("queries", "keys", "width", "expected"),
    [(128, 128, 64, True), (1, 128, 64, False), (127, 127, 64, False), (64, 64, 136, False), (64, 64, 20, False)],
)
def test_cudnn_is_used_only_where_it_has_kernels(queries, keys, width, expected):
    """On an H200, cuDNN refuses to train odd numbers of positions, such as a pooled first token."""
    from lmzoo.layers.attention import _has_kernel

    assert _has_kernel(np.zeros((3, 2, queries, width)), np.zeros((3, 2, keys, width))) is expected


@pytest.mark.tf_only
@pytest.mark.parametrize("kind", ["plain", "lora", "int8"])
def test_joined_projections_do_not_change_the_outputs(kind):
    import tensorflow as tf

    layer, x = layer_and_input()
    if kind == "lora":
        layer.key.enable_lora(2)
        layer.key.lora_kernel_b.assign(np.ones(layer.key.lora_kernel_b.shape))
    if kind == "int8":
        layer.value.quantize("int8")
    expected = [layer(x, RIGHT_PADDED), layer(x, RIGHT_PADDED, x[:, :2])]
    with join_projections([layer]) as joined_kernels:
        actual = [tf.function(layer)(x, RIGHT_PADDED), tf.function(layer)(x, RIGHT_PADDED, x[:, :2])]
    assert len(joined_kernels) == (0 if kind == "int8" else 4)
    for desired, outputs in zip(expected, actual, strict=True):
        assert difference(to_numpy(desired), to_numpy(outputs)) <= 1e-5


# === Causal attention ===


@pytest.mark.parametrize("mask", [RIGHT_PADDED, WITH_HOLES, ~WITH_HOLES], ids=["right_padded", "with_holes", "left"])
def test_causal_probabilities_are_of_earlier_tokens(mask):
    layer, x = layer_and_input(mask="causal")
    probabilities = to_numpy(layer.scores(x, mask))  # (B, N, T, T)
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, atol=1e-6)
    assert (probabilities * np.triu(np.ones((T, T)), 1) == 0.0).all()
    is_visible = mask[:, None] & np.tri(T, dtype=bool)  # (B, T, T)
    sees_tokens = is_visible.any(-1)
    assert (np.moveaxis(probabilities, 1, 2)[sees_tokens] * ~is_visible[sees_tokens][:, None] == 0.0).all()
    assert (np.moveaxis(probabilities, 1, 2)[sees_tokens][:, 0] > 0.0)[is_visible[sees_tokens]].all()


def test_causal_attention_equals_attention_over_each_prefix():
    causal, x = layer_and_input(mask="causal")
    bidirectional, _ = layer_and_input()
    outputs = to_numpy(causal(x, WITH_HOLES))
    for length in (1, 4, T):
        expected = to_numpy(bidirectional(x[:, :length], WITH_HOLES[:, :length]))
        assert difference(outputs[:, length - 1], expected[:, -1]) <= 1e-5


def test_the_batch_shares_a_causal_mask():
    layer, x = layer_and_input(mask="causal")
    shapes = shapes_in_graph(lambda x, mask: layer(x, mask), x, RIGHT_PADDED)
    assert {shape for shape, _ in shapes if shape[-2:] == (T, T)} <= {(B, N, T, T), (T, T), (1, 1, T, T)}
    assert not [shape for shape, dtype in shapes if dtype == "bool" and B in shape and shape.count(T) > 1]


def test_other_masks_are_refused():
    with pytest.raises(ValueError, match='`mask` must be "padding" or "causal", got \'none\''):
        SelfAttention(N, H, mask="none")
    assert SelfAttention.from_config(SelfAttention(N, H, mask="causal").get_config()).mask == "causal"


def test_causal_attention_refuses_queries():
    layer, x = layer_and_input(mask="causal")
    with pytest.raises(ValueError, match="takes no `queries`"):
        layer(x, RIGHT_PADDED, x[:, :2])


# === The cache ===

STEPS = {"one by one": [1] * T, "in chunks": [5, 3, 3], "at once": [T]}
MASKS = {"full": RIGHT_PADDED | True, "padded": RIGHT_PADDED, "with holes": WITH_HOLES}


def compiled(layer):
    """Return `layer`, compiled by XLA."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(layer, jit_compile=True)
    import jax

    return jax.jit(lambda x, mask, cache, index: layer(x, mask, cache=cache, index=index))


def run_with_cache(call, cache, x, mask, sizes):
    """Call a layer on parts of `x` of the given sizes, and return its outputs for all positions and the last cache."""
    outputs, index, room = [], 0, cache[0].shape[2]
    mask = keras.ops.convert_to_tensor(np.pad(mask, [(0, 0), (0, room - T)]))
    for size in sizes:
        part = keras.ops.convert_to_tensor(x[:, index : index + size])
        output, cache = call(part, mask, cache=cache, index=keras.ops.convert_to_tensor(index, "int32"))
        outputs.append(to_numpy(keras.ops.cast(output, "float32")))
        index += size
    return np.concatenate(outputs, axis=1), cache


# Eagerly, JAX would compile each operation for every shape.
@pytest.mark.quick_cases("one by one-eager", "in chunks-eager", "at once-eager")
@pytest.mark.parametrize("wrap", [compiled, pytest.param(lambda layer: layer, marks=pytest.mark.tf_only, id="eager")])
@pytest.mark.parametrize("sizes", STEPS.values(), ids=STEPS)
def test_with_a_cache_the_results_are_the_same(sizes, wrap):
    layer, x = layer_and_input(mask="causal")
    call = wrap(layer)
    for name, mask in MASKS.items():
        outputs, (keys, values) = run_with_cache(call, layer.empty_cache(B, 13), x, mask, sizes)
        assert difference(outputs, to_numpy(layer(x, mask))) <= 1e-5, name
        assert tuple(keys.shape) == tuple(values.shape) == (B, N, 13, D)
        assert not to_numpy(keys)[:, :, T:].any()


def test_a_cache_in_half_precision_stays_close():
    layer, x = layer_and_input(mask="causal", dtype="mixed_bfloat16")
    outputs, (keys, _) = run_with_cache(compiled(layer), layer.empty_cache(B, T), x, RIGHT_PADDED, STEPS["one by one"])
    assert keras.backend.standardize_dtype(keys.dtype) == "bfloat16"
    exact = to_numpy(layer_and_input(mask="causal")[0](x, RIGHT_PADDED))
    # bfloat16 has 8 bits. Processors round sums differently, also without a cache.
    assert difference(outputs, exact) <= 0.01 * np.abs(exact).max()


def test_wrong_uses_of_a_cache_are_refused():
    layer, x = layer_and_input(mask="causal")
    cache, mask = layer.empty_cache(B, T), np.ones((B, T), bool)
    with pytest.raises(ValueError, match=r"3 positions from 9 on do not fit into a cache of 11\."):
        layer(x[:, :3], mask, cache=cache, index=9)
    with pytest.raises(ValueError, match=r"11 positions from 0 on do not fit into a cache of 7\."):
        layer(x, mask[:, :7], cache=layer.empty_cache(B, 7), index=keras.ops.convert_to_tensor(0))
    with pytest.raises(ValueError, match="`cache` is for causal attention, and needs `index`"):
        layer(x, mask, cache=cache)
    with pytest.raises(ValueError, match="`cache` is for causal attention"):
        layer_and_input()[0](x, mask, cache=cache, index=0)
