"""Rotary positions and local attention, against NumPy: values, gradients, and what queries at some positions see."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import SelfAttention, attention_probabilities
from lmzoo.layers import attention as module
from lmzoo.layers.attention import join_projections
from lmzoo.layers.local_attention import attention_in_blocks, prefers_blocks
from lmzoo.layers.rotary import rotate, rotation_rates
from tests.reference.weights import difference, to_numpy

B, N, D = 3, 5, 6
H = N * D
WINDOW, WAVELENGTH = 7, 53.0  # a reach of 3
LONG = 23


def masks(length):
    """The longest sequence, a shorter one, one with holes, and nothing but padding."""
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
    """On JAX, one program instead of one for each operation."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


def heads_of(dense, x):
    projected = x @ to_numpy(dense.kernel) + (0 if dense.bias is None else to_numpy(dense.bias))
    return np.moveaxis(projected.reshape(*x.shape[:2], N, D), 2, 1)  # (B, N, T, D)


def rotated(x, positions):
    """The vectors as complex numbers, each multiplied by a number of length 1."""
    pairs = x[..., : D // 2] + 1j * x[..., D // 2 :]
    pairs = pairs * np.exp(1j * positions[..., None] * WAVELENGTH ** (-2 * np.arange(D // 2) / D))
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def expected_of(layer, x, mask):
    """Probabilities and results of NumPy, in float64."""
    x, positions = x.astype("float64"), np.arange(x.shape[1])
    query, key, value = (heads_of(dense, x) for dense in (layer.query, layer.key, layer.value))
    if layer.rotary_wavelength:
        query, key = rotated(query, positions), rotated(key, positions)
    scores = query @ np.swapaxes(key, 2, 3) / np.sqrt(D) + np.where(mask, 0, -np.inf)[:, None, None]
    if layer.window:
        far = np.abs(positions[:, None] - positions) > layer.window // 2
        scores = np.where(far, -np.inf, scores)
    with np.errstate(invalid="ignore"):  # rows that see nothing
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities = powers / powers.sum(-1, keepdims=True)
    context = np.moveaxis(probabilities @ value, 1, 2).reshape(x.shape)
    bias = 0 if layer.output_dense.bias is None else to_numpy(layer.output_dense.bias)
    return probabilities, context @ to_numpy(layer.output_dense.kernel) + bias


def assert_near(ours, expected, tolerance=1e-5):
    """Equal where NumPy has numbers, and finite everywhere."""
    ours = to_numpy(ours)
    assert np.isfinite(ours).all()
    real = np.isfinite(expected)
    assert real.any()
    assert np.abs(ours - expected)[real].max() <= tolerance


@pytest.mark.tf_only
def test_rates_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    for width in (6, 14, 26, 64):
        for wavelength in (10_000.0, 160_000.0):
            exponents = torch.arange(0, width, 2, dtype=torch.int64).float() / width
            np.testing.assert_array_equal(rotation_rates(width, wavelength), (1.0 / wavelength**exponents).numpy())


def test_positions_may_differ_between_sequences():
    x = np.random.default_rng(2).normal(size=(B, N, 4, D)).astype("float32")
    positions = np.array([[3, 0, 11, 7], [1, 1, 2, 900], [5, 6, 7, 8]], "int32")
    got = to_numpy(rotate(keras.ops.convert_to_tensor(x), positions, WAVELENGTH))
    assert difference(got, rotated(x, positions[:, None])) <= 1e-5 * 10
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)


CASES = [
    {"rotary_wavelength": WAVELENGTH},
    {"window": WINDOW},
    {"window": WINDOW, "rotary_wavelength": WAVELENGTH, "use_bias": False},
]


@pytest.mark.parametrize("length", [1, 5, 10, LONG])
@pytest.mark.parametrize("case", CASES, ids=["rotary", "local", "both"])
def test_equal_to_numpy(case, length):
    layer, x = layer_and_input(length, **case)
    assert len(layer.weights) == (4 if case.get("use_bias") is False else 8)
    mask = masks(length)
    probabilities, results = expected_of(layer, x, mask)
    ours, scores = compiled(lambda x, mask: (layer(x, mask), layer.scores(x, mask)))(x, mask)
    assert_near(ours, results)
    scores = to_numpy(scores)
    assert scores.shape == (4, N, length, length)
    assert_near(scores, probabilities, 1e-6)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9, LONG, 24])
def test_blocks_equal_the_mask_of_all_pairs(length):
    """Also for sequences and positions that see nothing but padding."""
    rng = np.random.default_rng(length)
    query, key, value = (keras.ops.convert_to_tensor(rng.normal(size=(4, N, length, D)), "float32") for _ in range(3))
    mask = masks(length)

    def both(query, key, value, mask):
        positions = keras.ops.arange(length, dtype="int32")
        by_mask = keras.ops.matmul(attention_probabilities(query, key, mask, positions, reach=3), value)
        return attention_in_blocks(query, key, value, mask, 3, lambda x: x), by_mask

    got, expected = compiled(both)(query, key, value, mask)
    assert tuple(got.shape) == (4, N, length, D)
    assert difference(to_numpy(got), to_numpy(expected)) <= 1e-5


def test_bias_within_a_window():
    """A bias changes the probabilities of what is in sight, and neither hides nor shows anything."""
    layer, x = layer_and_input(window=WINDOW, rotary_wavelength=WAVELENGTH)
    mask = masks(LONG)
    bias = np.random.default_rng(7).normal(size=(1, N, LONG, LONG)).astype("float32")
    plain = to_numpy(layer.scores(x, mask))  # (B, N, T, T)
    weights = plain * np.exp(bias)
    expected = weights / weights.sum(axis=-1, keepdims=True)
    got, scores = compiled(lambda x, mask, bias: (layer(x, mask, bias=bias), layer.scores(x, mask, bias=bias)))(
        x, mask, bias
    )
    # A position with nothing but padding in sight sees all of it alike: there, scores are too large for a bias.
    sees_tokens = (plain * mask[:, None, None]).sum(axis=-1, keepdims=True) > 0.5  # (B, N, T, 1)
    expected = np.where(sees_tokens, expected, plain)
    assert difference(to_numpy(scores), expected) <= 1e-5
    _, _, value = layer._project(keras.ops.convert_to_tensor(x), None, None)
    context = np.swapaxes(expected @ to_numpy(value), 1, 2).reshape(4, LONG, H)
    assert difference(to_numpy(got), to_numpy(layer.output_dense(context))) <= 1e-4


@pytest.mark.parametrize("case", CASES, ids=["rotary", "local", "both"])
def test_queries_are_at_their_positions(case):
    layer, x = layer_and_input(**case)
    mask, positions = masks(LONG), np.array([[4, 0, 22], [2, 2, 9], [17, 3, 1], [0, 0, 22]], "int32")
    chosen = np.take_along_axis(x, positions[:, :, None], axis=1)

    def results(x, mask, chosen, positions):
        of_chosen = layer(x, mask, chosen, positions=positions), layer.scores(x, mask, chosen, positions=positions)
        return *of_chosen, layer(x, mask), layer.scores(x, mask), layer(x, mask, x[:, :2])

    got, rows, whole, scores, first = map(to_numpy, compiled(results)(x, mask, chosen, positions))
    assert difference(got, np.take_along_axis(whole, positions[:, :, None], axis=1)) <= 1e-5
    assert difference(rows, np.take_along_axis(scores, positions[:, None, :, None], axis=2)) <= 1e-6
    assert difference(first, whole[:, :2]) <= 1e-5


def test_a_cache_with_rotary_positions():
    layer, x = layer_and_input(rotary_wavelength=WAVELENGTH, mask="causal")
    mask = masks(LONG)

    def results(x, mask):
        first, cache = layer(x[:, :17], mask, cache=layer.empty_cache(4, LONG), index=0)
        second, _ = layer(x[:, 17:], mask, cache=cache, index=17)
        return layer(x, mask), keras.ops.concatenate([first, second], axis=1)

    assert difference(*map(to_numpy, compiled(results)(x, mask))) <= 1e-5


def test_blocks_have_the_gradients_of_the_mask(monkeypatch):
    """With the same parts of a quadratic loss at real tokens, for all weights and the inputs."""
    layer, x = layer_and_input(window=WINDOW, rotary_wavelength=WAVELENGTH)
    mask = masks(LONG)
    slopes = []
    for blocks in (True, False):
        monkeypatch.setattr(module, "prefers_blocks", lambda length, reach, blocks=blocks: blocks)
        slopes.append(gradients_of(layer, x, mask))
    for ours, expected in zip(*slopes, strict=True):
        assert np.isfinite(ours).all()
        assert difference(ours, expected) <= 1e-4 * max(1, np.abs(expected).max())


def gradients_of(layer, x, mask):
    weights = mask[:, :, None].astype("float32")
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(layer(x, mask)) * weights)
        variables = [v.value for v in layer.trainable_variables]
        return [to_numpy(g) for g in tape.gradient(loss, [x, *variables])]
    import jax

    def loss(values, x):
        outputs, _ = layer.stateless_call(values, [v.value for v in layer.non_trainable_variables], x, mask)
        return jax.numpy.sum(jax.numpy.square(outputs) * weights)

    of_weights, of_inputs = jax.jit(jax.grad(loss, argnums=(0, 1)))([v.value for v in layer.trainable_variables], x)
    return [np.asarray(g) for g in (of_inputs, *of_weights)]


def test_no_scores_of_all_pairs_are_made():
    from tests.layers.test_attention import shapes_in_graph

    layer, x = layer_and_input(window=WINDOW)
    made = shapes_in_graph(lambda x, mask: layer(x, mask), x, masks(LONG))
    assert not [shape for shape, _ in made if shape.count(LONG) > 1]
    assert [shape for shape, _ in made if shape[-2:] == (3, 9)]


def test_where_blocks_are_used():
    assert [prefers_blocks(length, 3) for length in (1, 9, 10)] == [False, False, True]


@pytest.mark.quick_cases("23")
@pytest.mark.tf_only
@pytest.mark.parametrize("length", [1, 2, 9, LONG])
def test_graphs_for_any_length(length):
    import tensorflow as tf

    layer, x = layer_and_input(length, window=WINDOW, rotary_wavelength=WAVELENGTH, use_bias=False)
    specs = [tf.TensorSpec([None, None, H]), tf.TensorSpec([None, None], tf.bool)]
    expected = to_numpy(layer(x, masks(length)))
    assert difference(to_numpy(tf.function(layer, specs)(x, masks(length))), expected) <= 1e-5
    with join_projections([layer]) as kept:
        joined = tf.function(lambda x, mask: layer(x, mask)).get_concrete_function(*specs)
    assert len(kept) == 2
    assert difference(to_numpy(joined(x, tf.constant(masks(length)))), expected) <= 1e-5
    compiled = tf.function(layer, jit_compile=True)
    assert difference(to_numpy(compiled(x, masks(length))), expected) <= 1e-5


def test_half_precision():
    layer, x = layer_and_input(window=WINDOW, rotary_wavelength=WAVELENGTH, dtype="mixed_bfloat16")
    got = compiled(layer)(x, masks(LONG))
    assert keras.backend.standardize_dtype(got.dtype) == "bfloat16"
    _, expected = expected_of(layer, x, masks(LONG))
    assert_near(keras.ops.cast(got, "float32"), expected, 0.02 * np.nanmax(np.abs(expected)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 1}, "`window` must be at least 2"),
        ({"window": 7, "mask": "causal"}, "`mask` then \"padding\", got 7 and 'causal'"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        SelfAttention(N, H, **arguments)


def test_rotary_positions_need_pairs():
    with pytest.raises(ValueError, match="heads of an even width, got 7"):
        SelfAttention(3, 21, rotary_wavelength=WAVELENGTH)
