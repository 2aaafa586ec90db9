"""Rotary positions and local attention against numpy: values, gradients, and queries at given positions."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import SelfAttention, attention_probabilities
from lmzoo.layers import attention as module
from lmzoo.layers.attention import join_projections
from lmzoo.layers.local_attention import attention_in_blocks, prefers_blocks
from lmzoo.layers.rotary import compute_rotation_rates, rotate
from tests.reference.gradients import value_and_gradients
from tests.reference.weights import difference, to_numpy

B, N, D = 3, 5, 6
H = N * D
WINDOW, WAVELENGTH = 7, 53.0  # a reach of 3
LONG = 23


def masks(length):
    """Return masks: the longest sequence, a shorter one, one with holes, and only padding."""
    right_padded = np.arange(length) < np.array([length, length // 2 + 1, length, 0])[:, None]
    right_padded[2] &= np.arange(length) % 5 != 2
    return right_padded


def layer_and_input(length=LONG, **arguments):
    layer = SelfAttention(N, H, **arguments)
    layer.build((None, None, H))
    rng = np.random.default_rng(5)
    for weight in layer.weights:
        weight.assign(rng.normal(0, 0.3, weight.shape).astype("float32"))
    return layer, rng.normal(size=(4, length, H)).astype("float32")


def compiled(function):
    """Return one program on JAX, which otherwise compiles each operation."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


def heads_of(dense, x):
    projected = x @ to_numpy(dense.kernel) + (0 if dense.bias is None else to_numpy(dense.bias))
    return np.moveaxis(projected.reshape(*x.shape[:2], N, D), 2, 1)  # (B, N, T, D)


def rotated(x, positions):
    """Return the vectors rotated as complex numbers, by factors of length 1."""
    pairs = x[..., : D // 2] + 1j * x[..., D // 2 :]
    pairs = pairs * np.exp(1j * positions[..., None] * WAVELENGTH ** (-2 * np.arange(D // 2) / D))
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def expected_of(layer, x, mask):
    """Return numpy's probabilities and outputs, in float64."""
    x, positions = x.astype("float64"), np.arange(x.shape[1])
    query, key, value = (heads_of(dense, x) for dense in (layer.query, layer.key, layer.value))
    if layer.rotary_wavelength:
        query, key = rotated(query, positions), rotated(key, positions)
    scores = query @ np.swapaxes(key, 2, 3) / np.sqrt(D) + np.where(mask, 0, -np.inf)[:, None, None]
    if layer.window:
        is_far = np.abs(positions[:, None] - positions) > layer.window // 2
        scores = np.where(is_far, -np.inf, scores)
    with np.errstate(invalid="ignore"):  # rows in which nothing is visible
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities = powers / powers.sum(-1, keepdims=True)
    context = np.moveaxis(probabilities @ value, 1, 2).reshape(x.shape)
    bias = 0 if layer.output_dense.bias is None else to_numpy(layer.output_dense.bias)
    return probabilities, context @ to_numpy(layer.output_dense.kernel) + bias


def assert_near(actual, expected, tolerance=1e-5):
    """Check that values are near the expected ones where those are numbers, and finite everywhere."""
    actual = to_numpy(actual)
    assert np.isfinite(actual).all()
    real = np.isfinite(expected)
    assert real.any()
    assert np.abs(actual - expected)[real].max() <= tolerance


@pytest.mark.tf_only
def test_rotation_rates_equal_pytorch():
    torch = pytest.importorskip("torch")
    for width in (6, 14, 26, 64):
        for wavelength in (10_000.0, 160_000.0):
            exponents = torch.arange(0, width, 2, dtype=torch.int64).float() / width
            np.testing.assert_array_equal(
                compute_rotation_rates(width, wavelength), (1.0 / wavelength**exponents).numpy()
            )


def test_positions_may_differ_between_sequences():
    x = np.random.default_rng(2).normal(size=(B, N, 4, D)).astype("float32")
    positions = np.array([[3, 0, 11, 7], [1, 1, 2, 900], [5, 6, 7, 8]], "int32")
    actual = to_numpy(rotate(keras.ops.convert_to_tensor(x), positions, WAVELENGTH))
    assert difference(actual, rotated(x, positions[:, None])) <= 1e-5 * 10
    np.testing.assert_allclose(np.linalg.norm(actual, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)


CASES = [
    {},
    {"rotary_wavelength": WAVELENGTH},
    {"window": WINDOW},
    {"window": WINDOW, "rotary_wavelength": WAVELENGTH, "use_bias": False},
]


@pytest.mark.parametrize("length", [1, 5, 10, LONG])
@pytest.mark.parametrize("case", CASES, ids=["plain", "rotary", "local", "both"])
def test_attention_equals_numpy(case, length):
    layer, x = layer_and_input(length, **case)
    assert len(layer.weights) == (4 if case.get("use_bias") is False else 8)
    mask = masks(length)
    probabilities, expected = expected_of(layer, x, mask)
    outputs, scores = compiled(lambda x, mask: (layer(x, mask), layer.scores(x, mask)))(x, mask)
    assert_near(outputs, expected)
    scores = to_numpy(scores)
    assert scores.shape == (4, N, length, length)
    assert_near(scores, probabilities, 1e-6)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9, LONG, 24])
def test_blocks_equal_a_mask_of_all_pairs(length):
    """Some sequences and positions see only padding."""
    rng = np.random.default_rng(length)
    query, key, value = (keras.ops.convert_to_tensor(rng.normal(size=(4, N, length, D)), "float32") for _ in range(3))
    mask = masks(length)

    def compute_both(query, key, value, mask):
        positions = keras.ops.arange(length, dtype="int32")
        probabilities = attention_probabilities(query, key, mask, positions, reach=3)
        return attention_in_blocks(query, key, value, mask, 3, lambda x: x), keras.ops.matmul(probabilities, value)

    by_blocks, by_mask = compiled(compute_both)(query, key, value, mask)
    assert tuple(by_blocks.shape) == (4, N, length, D)
    assert difference(to_numpy(by_blocks), to_numpy(by_mask)) <= 1e-5


def test_a_bias_changes_visible_probabilities_only():
    """A bias neither hides nor shows a position."""
    layer, x = layer_and_input(window=WINDOW, rotary_wavelength=WAVELENGTH)
    mask = masks(LONG)
    bias = np.random.default_rng(7).normal(size=(1, N, LONG, LONG)).astype("float32")
    plain = to_numpy(layer.scores(x, mask))  # (B, N, T, T)
    weights = plain * np.exp(bias)
    expected = weights / weights.sum(axis=-1, keepdims=True)
    both = compiled(lambda x, mask, bias: (layer(x, mask, bias=bias), layer.scores(x, mask, bias=bias)))
    outputs, scores = both(x, mask, bias)
    # Where only padding is visible, a position sees all of it equally: its scores are too large for a bias.
    sees_tokens = (plain * mask[:, None, None]).sum(axis=-1, keepdims=True) > 0.5  # (B, N, T, 1)
    expected = np.where(sees_tokens, expected, plain)
    assert difference(to_numpy(scores), expected) <= 1e-5
    _, _, value = layer._project(keras.ops.convert_to_tensor(x), None, None)
    context = np.swapaxes(expected @ to_numpy(value), 1, 2).reshape(4, LONG, H)
    assert difference(to_numpy(outputs), to_numpy(layer.output_dense(context))) <= 1e-4


def test_positions_of_whole_sequences_are_refused():
    layer, x = layer_and_input(window=WINDOW)
    positions = np.tile(np.arange(LONG, dtype="int32"), (4, 1))
    for call in (layer, layer.scores):
        with pytest.raises(ValueError, match=r"counts the positions of its inputs from 0\. Pass `positions` only with"):
            call(x, masks(LONG), positions=positions)


@pytest.mark.parametrize("case", CASES, ids=["plain", "rotary", "local", "both"])
def test_queries_give_the_rows_at_their_positions(case):
    layer, x = layer_and_input(**case)
    mask, positions = masks(LONG), np.array([[4, 0, 22], [2, 2, 9], [17, 3, 1], [0, 0, 22]], "int32")
    chosen = np.take_along_axis(x, positions[:, :, None], axis=1)

    def results(x, mask, chosen, positions):
        rows = layer(x, mask, chosen, positions=positions), layer.scores(x, mask, chosen, positions=positions)
        return *rows, layer(x, mask), layer.scores(x, mask), layer(x, mask, x[:, :2])

    rows, row_scores, whole, scores, first = map(to_numpy, compiled(results)(x, mask, chosen, positions))
    assert difference(rows, np.take_along_axis(whole, positions[:, :, None], axis=1)) <= 1e-5
    assert difference(row_scores, np.take_along_axis(scores, positions[:, None, :, None], axis=2)) <= 1e-6
    assert difference(first, whole[:, :2]) <= 1e-5


def test_rotary_positions_continue_with_a_cache():
    layer, x = layer_and_input(rotary_wavelength=WAVELENGTH, mask="causal")
    mask = masks(LONG)

    def results(x, mask):
        first, cache = layer(x[:, :17], mask, cache=layer.empty_cache(4, LONG), index=0)
        second, _ = layer(x[:, 17:], mask, cache=cache, index=17)
        return layer(x, mask), keras.ops.concatenate([first, second], axis=1)

    assert difference(*map(to_numpy, compiled(results)(x, mask))) <= 1e-5


def test_blocks_have_the_gradients_of_the_mask(monkeypatch):
    """The loss is quadratic at real tokens; gradients are of all weights and the inputs."""
    layer, x = layer_and_input(window=WINDOW, rotary_wavelength=WAVELENGTH)
    mask = masks(LONG)
    results = []
    for blocks in (True, False):
        monkeypatch.setattr(module, "prefers_blocks", lambda length, reach, blocks=blocks: blocks)
        results.append(gradients_of(layer, x, mask))
    for actual, expected in zip(*results, strict=True):
        assert np.isfinite(actual).all()
        assert difference(actual, expected) <= 1e-4 * max(1, np.abs(expected).max())


def gradients_of(layer, x, mask):
    weights = mask[:, :, None].astype("float32")

    def loss(x, *values):
        outputs, _ = layer.stateless_call(values, layer.non_trainable_variables, x, mask)
        return keras.ops.sum(keras.ops.square(outputs) * weights)

    return value_and_gradients(loss, x, *(to_numpy(v.value) for v in layer.trainable_variables))[1]


def test_no_scores_of_all_pairs_are_made():
    from tests.layers.test_attention import shapes_in_graph

    layer, x = layer_and_input(window=WINDOW)
    shapes = shapes_in_graph(lambda x, mask: layer(x, mask), x, masks(LONG))
    assert not [shape for shape, _ in shapes if shape.count(LONG) > 1]
    assert [shape for shape, _ in shapes if shape[-2:] == (3, 9)]


def test_blocks_are_used_for_long_sequences():
    assert [prefers_blocks(length, 3) for length in (1, 9, 10)] == [False, False, True]


@pytest.mark.quick_cases("23")
@pytest.mark.tf_only
@pytest.mark.parametrize("length", [1, 2, 9, LONG])
def test_graphs_take_any_length(length):
    import tensorflow as tf

    layer, x = layer_and_input(length, window=WINDOW, rotary_wavelength=WAVELENGTH, use_bias=False)
    specs = [tf.TensorSpec([None, None, H]), tf.TensorSpec([None, None], tf.bool)]
    expected = to_numpy(layer(x, masks(length)))
    assert difference(to_numpy(tf.function(layer, specs)(x, masks(length))), expected) <= 1e-5
    with join_projections([layer]) as joined_kernels:
        with_joined_kernels = tf.function(lambda x, mask: layer(x, mask)).get_concrete_function(*specs)
    assert len(joined_kernels) == 2
    assert difference(to_numpy(with_joined_kernels(x, tf.constant(masks(length)))), expected) <= 1e-5
    compiled = tf.function(layer, jit_compile=True)
    assert difference(to_numpy(compiled(x, masks(length))), expected) <= 1e-5


def test_half_precision_stays_close():
    layer, x = layer_and_input(window=WINDOW, rotary_wavelength=WAVELENGTH, dtype="mixed_bfloat16")
    outputs = compiled(layer)(x, masks(LONG))
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
    _, expected = expected_of(layer, x, masks(LONG))
    assert_near(keras.ops.cast(outputs, "float32"), expected, 0.02 * np.nanmax(np.abs(expected)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 1}, "`window` must be at least 2"),
        ({"window": 7, "mask": "causal"}, "`mask` then \"padding\", got 7 and 'causal'"),
    ],
)
def test_wrong_windows_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SelfAttention(N, H, **arguments)


def test_rotary_positions_need_pairs():
    with pytest.raises(ValueError, match="heads of an even width, got 7"):
        SelfAttention(3, 21, rotary_wavelength=WAVELENGTH)
