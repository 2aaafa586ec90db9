"""Dropout: how much is dropped, the values of the rest, and what the draws depend on."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import Dropout
from tests.reference.weights import to_numpy

SHAPE = (37, 101, 53)  # 198,061 elements, an odd number: the bits are drawn in pairs
SIZE = int(np.prod(SHAPE))
RATES = [0.1, 0.5, 0.9, 0.003]


def ones(dtype="float32"):
    return keras.ops.ones(SHAPE, dtype)


def draw(layer, x=None):
    return to_numpy(layer(ones() if x is None else x, training=True))


@pytest.mark.parametrize("rate", RATES)
def test_keep_rate_is_within_the_bounds_of_a_binomial(rate):
    num_kept = int((draw(Dropout(rate, seed=5)) != 0).sum())
    keep = 1 - round(rate * 2**16) / 2**16
    assert abs(num_kept - SIZE * keep) <= 4 * np.sqrt(SIZE * keep * (1 - keep))


@pytest.mark.parametrize("rate", RATES)
def test_values_are_zero_or_the_scaled_input(rate):
    x = np.random.default_rng(7).normal(size=SHAPE).astype("float32")
    outputs = draw(Dropout(rate, seed=5), x)
    keep = 1 - round(rate * 2**16) / 2**16 if keras.backend.backend() != "torch" else 1 - rate
    is_kept = outputs != 0
    np.testing.assert_allclose(outputs[is_kept], x[is_kept] / keep, rtol=1e-6)
    assert 0 < is_kept.sum() < SIZE


def test_keep_rate_is_the_same_along_every_axis():
    # Repeated bits would show as lines of another rate.
    is_kept = draw(Dropout(0.3, seed=11)) != 0
    for axes in ((1, 2), (0, 2), (0, 1)):
        rates = is_kept.mean(axes)
        n = SIZE / len(rates)
        assert np.abs(rates - 0.7).max() <= 5 * np.sqrt(0.7 * 0.3 / n)
    flat = is_kept.ravel().astype("float64") - is_kept.mean()
    for lag in (1, 2, 3, 4, 53, SIZE // 2):
        assert abs(np.mean(flat[lag:] * flat[:-lag])) <= 5 * 0.21 / np.sqrt(SIZE - lag)


def correlation(a, b):
    return np.corrcoef(a.ravel() != 0, b.ravel() != 0)[0, 1]


def test_layers_and_steps_are_independent():
    first, second = Dropout(0.5), Dropout(0.5)
    a, b, c = draw(first), draw(second), draw(first)
    bound = 5 / np.sqrt(SIZE)
    assert abs(correlation(a, b)) <= bound
    assert abs(correlation(a, c)) <= bound
    assert correlation(a, a) > 0.99


def test_seeds_reproduce_the_sequence():
    layer, copy, other_seed = (Dropout(0.4, seed=seed) for seed in (3, 3, 4))
    first = draw(layer)
    np.testing.assert_array_equal(first, draw(copy))
    np.testing.assert_array_equal(draw(layer), draw(copy))
    assert abs(correlation(first, draw(other_seed))) <= 5 / np.sqrt(SIZE)
    keras.utils.set_random_seed(1)
    unseeded = draw(Dropout(0.4))
    keras.utils.set_random_seed(1)
    np.testing.assert_array_equal(unseeded, draw(Dropout(0.4)))


@pytest.mark.parametrize(("rate", "training"), [(0.0, True), (0.0, False), (0.5, False), (1e-6, True)])
def test_inputs_are_unchanged_at_rate_zero_and_outside_training(rate, training):
    x = np.random.default_rng(7).normal(size=(3, 5)).astype("float32")
    np.testing.assert_array_equal(to_numpy(Dropout(rate)(x, training=training)), x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_half(dtype):
    outputs = Dropout(0.5, seed=2, dtype=dtype)(ones(dtype), training=True)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    assert set(np.unique(to_numpy(outputs))) == {0.0, 2.0}


def test_compiled_draws_equal_eager_draws_and_advance():
    eager, compiled = Dropout(0.5, seed=13), Dropout(0.5, seed=13)
    expected = [draw(eager), draw(eager)]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        step = tf.function(lambda x: compiled(x, training=True), jit_compile=True)
        actual = [to_numpy(step(ones())) for _ in range(2)]
    elif keras.backend.backend() == "jax":
        import jax

        state, actual = [v.value for v in compiled.non_trainable_variables], []
        step = jax.jit(lambda state, x: compiled.stateless_call([], state, x, training=True))
        for _ in range(2):
            output, state = step(state, ones())
            actual.append(to_numpy(output))
    else:
        pytest.skip("the backend does not compile")
    np.testing.assert_array_equal(actual, expected)
    assert not np.array_equal(*actual)


def test_the_gradient_flows_through_values_that_were_kept():
    inputs = keras.Input((11,))
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Model(inputs, dense(Dropout(0.5, seed=19)(inputs)))
    model.compile(keras.optimizers.SGD(1.0), lambda y, p: keras.ops.sum(p))
    model.train_on_batch(np.ones((1, 11), "float32"), np.zeros((1, 1)))
    assert set(np.unique(to_numpy(dense.kernel))) == {-1.0, 1.0}  # 1 minus 0 or 2


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2])
def test_rates_out_of_range_are_refused(rate):
    with pytest.raises(ValueError, match=r"`rate` must be a number in \[0, 1\), got"):
        Dropout(rate)


def test_a_rate_just_below_one_gives_finite_values():
    values = np.unique(Dropout(1 - 1e-6)(np.ones((97, 1009), "float32"), training=True))
    assert values.tolist() in ([0.0], [0.0, 65536.0])
