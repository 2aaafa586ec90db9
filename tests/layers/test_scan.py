"""The loop against a loop in Python: values and gradients, in eager mode, in graphs and compiled."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers.scan import scan

STEPS, BATCH, WIDTH = 5, 3, 7
TOLERANCE = 1e-5


def step_of(weight):
    def step(carry, x):
        state = keras.ops.tanh(keras.ops.matmul(carry["state"], weight) + x["a"])
        total = carry["total"] + keras.ops.sum(state * x["b"][:, None], axis=0)
        return {"state": state, "total": total}, (state * 2, {"total": total})

    return step


def arguments(steps=STEPS):
    rng = np.random.default_rng(5)
    shapes = [(WIDTH, WIDTH), (BATCH, WIDTH), (WIDTH,), (steps, BATCH, WIDTH), (steps, BATCH)]
    return [rng.normal(scale=0.3, size=shape).astype("float32") for shape in shapes]


def run_scan(weight, state, total, a, b, reverse=False):
    return scan(step_of(weight), {"state": state, "total": total}, {"a": a, "b": b}, reverse=reverse)


def run_python_loop(weight, state, total, a, b, reverse=False):
    carry, ys = {"state": state, "total": total}, {}
    for i in reversed(range(len(a))) if reverse else range(len(a)):
        carry, ys[i] = step_of(weight)(carry, {"a": a[i], "b": b[i]})
    return carry, keras.tree.map_structure(lambda *y: keras.ops.stack(y), *(ys[i] for i in range(len(a))))


def loss_of(results):
    """Return a number that depends on each of the results differently."""
    flat = [value for value in keras.tree.flatten(results) if value is not None]
    return sum(keras.ops.sum(keras.ops.sin(value * (i + 1))) for i, value in enumerate(flat))


def values_and_gradients(function, mode, inputs):
    """Return the results of `function` and the gradients of `loss_of`, in a mode of the backend."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        def run(*inputs):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                results = function(*inputs)
                loss = loss_of(results)
            return results, tape.gradient(loss, inputs)

        unknown = [tf.TensorSpec([None] * x.ndim, x.dtype) for x in inputs]
        run = {
            "eager": run,
            "graph": tf.function(run),
            "unknown shapes": tf.function(run, input_signature=unknown),
            "jit": tf.function(run, jit_compile=True),
        }[mode]
        return run(*map(tf.constant, inputs))
    if keras.backend.backend() == "jax":
        import jax

        def run(*inputs):
            return function(*inputs), jax.grad(lambda *i: loss_of(function(*i)), argnums=range(len(inputs)))(*inputs)

        return (jax.jit(run) if mode == "jit" else run)(*inputs)
    pytest.skip("gradients are checked on TensorFlow and JAX")


def assert_close(actual, expected):
    keras.tree.assert_same_structure(actual, expected)
    for a, b in zip(keras.tree.flatten(actual), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.quick_cases("eager-False", "eager-True")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("mode", ["eager", "graph", "unknown shapes", "jit"])
def test_equals_a_python_loop(mode, reverse):
    expected = values_and_gradients(lambda *i: run_python_loop(*i, reverse=reverse), "eager", arguments())
    assert_close(values_and_gradients(lambda *i: run_scan(*i, reverse=reverse), mode, arguments()), expected)
    assert all(np.abs(g).max() > 1e-3 for g in expected[1])


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
def test_inputs_are_optional(mode):
    def powers(x):
        return scan(lambda carry, x_t: (carry * x, carry if x_t is None else None), x, length=4)

    x = np.array([2.0, -3.0], "float32")
    (last, carries), (gradient,) = values_and_gradients(powers, mode, [x])
    np.testing.assert_allclose(last, x**5)
    np.testing.assert_allclose(carries, [x, x**2, x**3, x**4])
    expected = sum(k * x ** (k - 1) * np.cos(x**k * 2) * 2 for k in range(1, 5)) + 5 * x**4 * np.cos(x**5)
    np.testing.assert_allclose(gradient, expected, rtol=1e-3)


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
def test_outputs_are_optional(mode):
    (last, ys), (gradient,) = values_and_gradients(
        lambda xs: scan(lambda carry, x: (carry + x, None), xs[0], xs), mode, [np.arange(5, dtype="float32")]
    )
    assert ys is None
    assert float(last) == 10
    np.testing.assert_allclose(gradient, np.cos(10) * np.array([2, 1, 1, 1, 1]), rtol=1e-5)


@pytest.mark.tf_only
@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_without_tensor_lists_is_the_same(reverse):
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None] * x.ndim, x.dtype) for x in arguments()])
    def run(weight, state, total, a, b):
        xs = {"a": a, "b": b}
        return scan(step_of(weight), {"state": state, "total": total}, xs, reverse=reverse, tensor_lists=False)

    graph = run.get_concrete_function().graph.as_graph_def()
    ops = {node.op for nodes in (graph.node, *(f.node_def for f in graph.library.function)) for node in nodes}
    assert "While" in ops or "StatelessWhile" in ops
    assert not [op for op in ops if op.startswith("TensorList")]
    for steps in (1, STEPS):
        assert_close(run(*map(tf.constant, arguments(steps))), run_python_loop(*arguments(steps), reverse=reverse))


@pytest.mark.tf_only
def test_reversed_loops_are_exported_to_onnx():
    """A loop in ONNX returns its outputs in the order of its steps, whatever their indices."""
    import tensorflow as tf

    convert = pytest.importorskip("tf2onnx").convert.from_function
    session = pytest.importorskip("onnxruntime").InferenceSession
    specs = [tf.TensorSpec([None] * x.ndim, x.dtype, name=name) for name, x in zip("wstab", arguments(), strict=True)]

    @tf.function
    def run(*inputs):
        return keras.tree.flatten(run_scan(*inputs, reverse=True))

    model, _ = convert(run, input_signature=specs)
    outputs = session(model.SerializeToString()).run(None, dict(zip("wstab", arguments(), strict=True)))
    assert_close(outputs, keras.tree.flatten(run_python_loop(*arguments(), reverse=True)))


@pytest.mark.tf_only
def test_the_length_may_be_known_only_at_run_time():
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def count(n):
        return scan(lambda carry, _: (carry + 1, carry), tf.constant(0), length=n)

    for n in (1, 6):
        last, carries = count(n)
        assert int(last) == n
        assert carries.numpy().tolist() == list(range(n))


def test_the_length_must_be_known():
    with pytest.raises(ValueError, match="`xs` or `length`"):
        scan(lambda carry, x: (carry, x), 0.0)
