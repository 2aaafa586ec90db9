"""AdamW against numpy, against Keras, and step by step along its schedule; Adagrad on tables; wrong settings."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest

from lmzoo.training import LAMB, Adagrad, AdamW
from tests.reference.weights import to_numpy
from tests.training.updating import (
    ARGUMENTS,
    apply_slices,
    assert_equal,
    compiled,
    gradient,
    start,
    train,
    train_in_numpy,
)


def test_equals_numpy_without_bias_correction():
    expected = train_in_numpy(bias_correction=False, scales_updates=False)
    assert_equal(train(AdamW(**ARGUMENTS, bias_correction=False)), expected)


@pytest.mark.parametrize("bias_correction", [False, True])
def test_updates_have_the_digits_of_float32(bias_correction):
    # The weight starts at 0, so as not to hide digits of its updates; 1 - 0.999 in float32 is wrong by 1.3e-5 of it.
    variable = keras.Variable(np.zeros(11, "float32"), name="kernel")
    optimizer = AdamW(0.03, weight_decay=0.0, bias_correction=bias_correction)
    optimizer.build([variable])
    draw = np.random.default_rng(1531)
    weight, first, second = np.zeros((3, 11))
    for step in range(1, 8):
        grads = draw.normal(size=11).astype("float32")
        optimizer.apply([keras.ops.convert_to_tensor(grads)], [variable])
        first = 0.9 * first + 0.1 * grads.astype("float64")
        second = 0.999 * second + 0.001 * grads.astype("float64") ** 2
        corrections = (1 - 0.9**step, 1 - 0.999**step) if bias_correction else (1, 1)
        weight = weight - 0.03 * np.sqrt(corrections[1]) / corrections[0] * first / (np.sqrt(second) + 1e-6)
        np.testing.assert_allclose(to_numpy(variable.value), weight, rtol=0, atol=1e-6 * np.abs(weight).max())


def test_steps_of_a_schedule_are_the_arguments_that_continue_it():
    variable = keras.Variable(np.zeros(3, "float32"), name="kernel")
    optimizer = AdamW()
    optimizer.build([variable])
    assert optimizer.schedule_steps == (0, 0, 0)
    optimizer.apply([keras.ops.ones(3)], [variable])
    optimizer.start_schedule(5, 11, elapsed=7)
    assert optimizer.schedule_steps == (5, 11, 7)
    optimizer.apply([keras.ops.ones(3)], [variable])
    assert optimizer.schedule_steps == (5, 11, 8)


def test_equals_keras_with_bias_correction():
    peer = keras.optimizers.AdamW(**ARGUMENTS)
    peer.exclude_from_weight_decay(var_names=["bias", "layer_norm"])
    assert_equal(train(AdamW(**ARGUMENTS)), train(peer))


def test_equals_keras_when_gradients_are_accumulated():
    # With accumulation Keras ignores excluded names, so here all weights decay.
    arguments = {**ARGUMENTS, "gradient_accumulation_steps": 2}
    weights = train(AdamW(**arguments, exclude_from_decay=()), steps=4)
    assert_equal(weights, train(keras.optimizers.AdamW(**arguments), steps=4))


@pytest.mark.parametrize("kind", [AdamW, LAMB])
def test_variables_are_excluded_from_weight_decay(kind):
    variables = {name: keras.Variable(np.ones(5, "float32"), name=name) for name in ("kernel", "table", "other_kernel")}
    optimizer = kind(0.5, weight_decay=0.25)
    optimizer.exclude_from_weight_decay([variables["kernel"]], ["table"])
    assert kind.from_config(optimizer.get_config()).exclude_from_decay == ("bias", "_norm", "table")
    optimizer.build(list(variables.values()))
    optimizer.apply([keras.ops.zeros(5)] * 3, list(variables.values()))
    assert {name for name, variable in variables.items() if np.any(to_numpy(variable.value) != 1)} == {"other_kernel"}
    with pytest.raises(ValueError, match=r"^The optimizer is built, .* Call `exclude_from_weight_decay` before"):
        optimizer.exclude_from_weight_decay(var_names=["other"])


def test_wrong_uses_of_weight_decay_are_refused():
    optimizer = AdamW()
    with pytest.raises(TypeError, match="`var_names` must be a list of strings, got 'bias'"):
        optimizer.exclude_from_weight_decay(var_names="bias")
    with pytest.raises(AttributeError, match="AdamW has its weight decay in the attribute `decay`"):
        optimizer.weight_decay = 0.5
    optimizer.decay = 0.5
    assert optimizer.get_config()["weight_decay"] == 0.5


def rates(optimizer, variable, steps):
    """Return each step's learning rate, computed from the decay of a weight without a gradient."""
    results = []
    for _ in range(steps):
        before = to_numpy(variable.value)
        optimizer.apply([keras.ops.zeros((1,))], [variable])
        results.append(float((1 - to_numpy(variable.value) / before)[0]))
    return results


def scheduled(**kwargs):
    variable = keras.Variable(np.ones(1, "float32"), name="kernel")
    optimizer = AdamW(0.1, weight_decay=1.0)
    optimizer.build([variable])
    optimizer.start_schedule(**kwargs)
    return optimizer, variable


FULL_RAMP = [0.025, 0.05, 0.075, 0.1] + [0.1 * n / 9 for n in range(9, 0, -1)] + [0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [0.1] * 5),
        ({"warmup_steps": 4}, [0.025, 0.05, 0.075, 0.1, 0.1, 0.1]),
        ({"total_steps": 5}, [0.1, 0.08, 0.06, 0.04, 0.02, 0.0]),
        ({"warmup_steps": 4, "total_steps": 13}, FULL_RAMP),
        ({"warmup_steps": 4, "total_steps": 13, "elapsed": 3}, FULL_RAMP[3:]),
    ],
)
def test_the_rate_rises_and_decays(arguments, expected):
    np.testing.assert_allclose(rates(*scheduled(**arguments), len(expected)), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("schedule", "decay"),
    [
        ("cosine", [0.5 + 0.5 * np.cos(np.pi * k / 9) for k in range(10)]),
        ("constant", [1.0] * 10),
        ("inverse_square_root", [np.sqrt(4 / (5 + k)) for k in range(10)]),
    ],
)
def test_schedules_follow_their_formulas(schedule, decay):
    optimizer, variable = scheduled(warmup_steps=4, total_steps=13)
    optimizer.schedule = schedule
    peak = max(FULL_RAMP)
    np.testing.assert_allclose(rates(optimizer, variable, 14), [*FULL_RAMP[:4], *(peak * d for d in decay)], atol=2e-6)
    assert AdamW.from_config(optimizer.get_config()).schedule == schedule
    with pytest.raises(ValueError, match=r"`schedule` must be one of linear, .*, slanted_triangular, got 'step'"):
        AdamW(schedule="step")


def test_a_second_schedule_starts_at_the_current_step():
    optimizer, variable = scheduled(warmup_steps=2, total_steps=7)
    assert rates(optimizer, variable, 9)[-1] == 0.0
    optimizer.start_schedule(warmup_steps=4, total_steps=13)
    np.testing.assert_allclose(rates(optimizer, variable, len(FULL_RAMP)), FULL_RAMP, atol=2e-6)


def test_the_schedule_multiplies_a_changed_learning_rate():
    optimizer, variable = scheduled(warmup_steps=4, total_steps=13)
    optimizer.learning_rate = 0.02
    np.testing.assert_allclose(rates(optimizer, variable, 6), [0.2 * r for r in FULL_RAMP[:6]], atol=2e-6)


def test_a_schedule_needs_a_built_optimizer():
    with pytest.raises(ValueError, match="Build the optimizer"):
        AdamW().start_schedule(1, 2)


@pytest.mark.tf_only
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (AdamW, {"weight_decay": 0.0, "beta_1": 0.0, "beta_2": 0.5, "epsilon": 1.0, "learning_rate": 0.1}),
        (Adagrad, {}),
    ],
)
def test_slices_of_one_row_are_added(kind, arguments):
    results = apply_slices(lambda: kind(**arguments, global_clipnorm=1.0))
    np.testing.assert_allclose(results[0][0], results[1][0], atol=1e-7)
    np.testing.assert_allclose(results[0][1], results[1][1], atol=1e-7)  # so clipped by the same norm


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_compiled_steps_equal_eager_steps(jit_compile, large, monkeypatch):
    if large:
        monkeypatch.setattr("lmzoo.training.optimizers._MIN_WEIGHTS_TO_COMPILE", 0)
    optimizer = AdamW(**ARGUMENTS)
    weights = train(optimizer, wrap=functools.partial(compiled, jit_compile=jit_compile))
    assert_equal(weights, train(AdamW(**ARGUMENTS)), tolerance=1e-6)
    assert (optimizer._compiled is not None) == (large and keras.backend.backend() == "tensorflow")


@pytest.mark.tf_only
@pytest.mark.parametrize(
    ("optimizer", "dtype", "is_used"), [(AdamW, "float32", 1), (AdamW, "bfloat16", 0), (LAMB, "float32", 0)]
)
def test_tensorflow_updates_a_weight_in_one_operation(optimizer, dtype, is_used):
    import tensorflow as tf

    weights = [*start(dtype).values()]
    optimizer = optimizer(**ARGUMENTS)
    optimizer.build(weights)
    step = tf.function(lambda grads: optimizer.apply(grads, weights))
    graph = step.get_concrete_function([tf.cast(g, dtype) for g in gradient(0)]).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert kinds.count("ResourceApplyAdam") == is_used * len(weights)


@pytest.mark.parametrize("arguments", [{}, {"gradient_accumulation_steps": 2}, {"use_ema": True}])
def test_bfloat16_weights_are_trained(arguments):
    before = {name: to_numpy(v.value) for name, v in start("bfloat16").items()}
    after = train(AdamW(**ARGUMENTS, **arguments), dtype="bfloat16")
    for name, value in train(AdamW(**ARGUMENTS, **arguments)).items():
        assert np.isfinite(after[name]).all()
        assert not np.array_equal(after[name], before[name])
        np.testing.assert_allclose(after[name], value, atol=0.1)


def test_averages_replace_16_bit_weights():
    weight = keras.Variable(np.ones(3), dtype="bfloat16", name="kernel")
    optimizer = AdamW(0.25, use_ema=True, ema_momentum=0.5)
    optimizer.build([weight])
    weights = []
    for _ in range(2):
        optimizer.apply([keras.ops.cast([1.0, 0.0, -1.0], "bfloat16")], [weight])
        weights.append(to_numpy(weight.value))
    optimizer.finalize_variable_values([weight])
    np.testing.assert_allclose(to_numpy(weight.value), np.mean(weights, axis=0), atol=0.01)


def get_state(optimizer, name):
    """Return the only optimizer variable that has `name` in its path, as an array."""
    (variable,) = (v for v in optimizer.variables if name in v.path)
    return keras.ops.convert_to_numpy(variable.value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("kind", "name"), [(AdamW, "second_moment"), (LAMB, "second_moment"), (Adagrad, "accumulator")]
)
def test_moments_of_16_bit_weights_equal_those_of_float32(kind, name, dtype):
    """In bfloat16, 1 + 2**-10 is 1; in float16, the square of 2**-14 is 0."""
    moments = {}
    weights = {}
    for weight_dtype in (dtype, "float32"):
        weight = keras.Variable(np.ones(3), dtype=weight_dtype, name="kernel")
        optimizer = kind(0.03)
        optimizer.build([weight])
        for _ in range(7):
            optimizer.apply([keras.ops.cast([2.0**-14, 0.0, 2.0**-5], weight_dtype)], [weight])
        moments[weight_dtype] = get_state(optimizer, name)
        weights[weight_dtype] = to_numpy(weight.value)
    assert moments[dtype].dtype == "float32"
    np.testing.assert_allclose(moments[dtype], moments["float32"], rtol=1e-4)
    np.testing.assert_allclose(weights[dtype], weights["float32"], atol=0.03)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("kind", "name"), [(AdamW, "first_moment"), (Adagrad, "accumulator")])
def test_16_bit_gradients_are_clipped_in_float32(kind, name, dtype):
    """In float16, the square of 300 is infinite."""
    weight = keras.Variable(np.ones(2), dtype=dtype, name="kernel")
    optimizer = kind(0.03, global_clipnorm=1.0)
    optimizer.build([weight])
    optimizer.apply([keras.ops.cast([300, 400], dtype)], [weight])
    expected = {"first_moment": [0.06, 0.08], "accumulator": [1.36, 1.64]}[name]
    np.testing.assert_allclose(get_state(optimizer, name), expected, rtol=1e-5)
    assert np.isfinite(to_numpy(weight.value)).all()


def test_moments_that_were_stored_in_16_bits_are_loaded():
    weight = keras.Variable(np.ones(5), dtype="bfloat16", name="kernel")
    optimizer = AdamW()
    optimizer.build([weight])
    arrays = [keras.ops.convert_to_numpy(variable.value) for variable in optimizer.variables]
    store = {str(index): array for index, array in enumerate(arrays)}
    store |= {index: np.full(5, 0.25, "bfloat16") for index, array in store.items() if array.shape == (5,)}
    optimizer.load_own_variables(store)
    for name in ("first_moment", "second_moment"):
        moment = get_state(optimizer, name)
        assert moment.dtype == "float32"
        np.testing.assert_array_equal(moment, np.full(5, 0.25))


@pytest.mark.parametrize("optimizer", [AdamW, Adagrad])
def test_weights_of_two_dtypes_are_clipped_together(optimizer):
    """A model in bfloat16 may have logits with a bias in float32."""
    weights = [keras.Variable(np.ones(3), dtype=dtype) for dtype in ("bfloat16", "float32")]
    optimizer(0.5, global_clipnorm=1.0).apply(
        [keras.ops.cast([3, 0, 0], "bfloat16"), keras.ops.cast([0, 0, 4], "float32")], weights
    )
    assert [to_numpy(weight.value).argmin() for weight in weights] == [0, 2]


@pytest.mark.parametrize(
    ("optimizer_class", "arguments", "fields"),
    [
        (AdamW, {**ARGUMENTS, "beta_1": 0.8, "beta_2": 0.95, "bias_correction": False}, {"weight_decay": 0.1}),
        (AdamW, {"exclude_from_decay": ["x"]}, {}),
        (LAMB, ARGUMENTS, {"bias_correction": False, "weight_decay": 0.1}),
        (Adagrad, {}, {"learning_rate": 0.2, "initial_accumulator_value": 1, "epsilon": 0, "global_clipnorm": 10}),
    ],
)
def test_optimizers_survive_serialization(optimizer_class, arguments, fields):
    optimizer = optimizer_class(**arguments)
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(copy) is optimizer_class
    assert copy.get_config() == optimizer.get_config()
    for name, value in {**arguments, **fields}.items():
        assert copy.get_config()[name] == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize("norm", [None, 0.7])
def test_adagrad_accumulates_the_sum_of_a_rows_gradients(norm):
    """Rows of a table are looked up several times, and the gradient may be clipped."""
    table = keras.layers.Embedding(5, 3)
    table.build((None,))
    ids, targets = np.array([[1, 4, 1], [1, 2, 4]]), np.linspace(-3, 2, 18).reshape(2, 3, 3)
    inputs = keras.Input((3,), dtype="int32")
    model = keras.Model(inputs, table(inputs))
    before = np.array(table.get_weights()[0], "float64")
    model.compile(Adagrad(0.2, initial_accumulator_value=1.0, global_clipnorm=norm), "mse")
    accumulated, expected = np.ones((5, 3)), before.copy()
    for _ in range(2):
        gradient = np.zeros((5, 3))
        np.add.at(gradient, ids, 2 * (expected[ids] - targets) / targets.size)
        if norm is not None:
            gradient *= min(1, norm / np.linalg.norm(gradient))
        accumulated += gradient**2
        expected -= 0.2 * gradient / np.sqrt(accumulated)
        model.train_on_batch(ids, targets)
    np.testing.assert_allclose(table.get_weights()[0], expected, atol=1e-6)
    assert np.abs(expected - before).max() > 0.01
    clone = Adagrad.from_config(model.optimizer.get_config())
    assert clone.get_config() == model.optimizer.get_config()


def test_divisions_by_zero_are_refused():
    """Some weights may never have had a gradient, such as the vectors of words that have not occurred."""
    with pytest.raises(ValueError, match=r"`epsilon` must be a positive number, got 0\.0"):
        AdamW(1e-3, epsilon=0.0)
    with pytest.raises(ValueError, match="`initial_accumulator_value` and `epsilon` are both 0"):
        Adagrad(initial_accumulator_value=0)
    Adagrad(initial_accumulator_value=0, epsilon=1e-7)


@pytest.mark.parametrize("optimizer", [AdamW, LAMB, Adagrad])
@pytest.mark.parametrize("rate", [-1e-3, float("nan"), float("inf")])
def test_wrong_learning_rates_are_refused(optimizer, rate):
    with pytest.raises(ValueError, match="`learning_rate` must be a finite number of at least 0"):
        optimizer(rate)
