"""The loop, against a loop in plain Python: values and gradients, eagerly, in graphs and compiled."""

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


def scanned(weight, state, total, a, b, reverse=False):
    return scan(step_of(weight), {"state": state, "total": total}, {"a": a, "b": b}, reverse=reverse)


def looped(weight, state, total, a, b, reverse=False):
    carry, ys = {"state": state, "total": total}, {}
    for i in reversed(range(len(a))) if reverse else range(len(a)):
        carry, ys[i] = step_of(weight)(carry, {"a": a[i], "b": b[i]})
    return carry, keras.tree.map_structure(lambda *y: keras.ops.stack(y), *(ys[i] for i in range(len(a))))


def loss_of(results):
    """A number that depends on each of the results in a way of its own."""
    flat = [value for value in keras.tree.flatten(results) if value is not None]
    return sum(keras.ops.sum(keras.ops.sin(value * (i + 1))) for i, value in enumerate(flat))


def values_and_gradients(function, mode, inputs):
    """Results of `function` and the gradient of `loss_of` them, run eagerly or in another of the backend's modes."""
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


def close(actual, expected):
    keras.tree.assert_same_structure(actual, expected)
    for a, b in zip(keras.tree.flatten(actual), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.quick_cases("eager-False", "eager-True")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("mode", ["eager", "graph", "unknown shapes", "jit"])
def test_equals_a_python_loop(mode, reverse):
    expected = values_and_gradients(lambda *i: looped(*i, reverse=reverse), "eager", arguments())
    close(values_and_gradients(lambda *i: scanned(*i, reverse=reverse), mode, arguments()), expected)
    assert all(np.abs(g).max() > 1e-3 for g in expected[1])


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
def test_without_inputs(mode):
    def powers(x):
        return scan(lambda carry, nothing: (carry * x, carry if nothing is None else None), x, length=4)

    x = np.array([2.0, -3.0], "float32")
    (last, seen), (gradient,) = values_and_gradients(powers, mode, [x])
    np.testing.assert_allclose(last, x**5)
    np.testing.assert_allclose(seen, [x, x**2, x**3, x**4])
    slopes = sum(k * x ** (k - 1) * np.cos(x**k * 2) * 2 for k in range(1, 5)) + 5 * x**4 * np.cos(x**5)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-3)


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
def test_without_outputs(mode):
    (last, nothing), (gradient,) = values_and_gradients(
        lambda xs: scan(lambda carry, x: (carry + x, None), xs[0], xs), mode, [np.arange(5, dtype="float32")]
    )
    assert nothing is None
    assert float(last) == 10
    np.testing.assert_allclose(gradient, np.cos(10) * np.array([2, 1, 1, 1, 1]), rtol=1e-5)


@pytest.mark.tf_only
@pytest.mark.parametrize("reverse", [False, True])
def test_without_lists_of_tensors(reverse):
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
        close(run(*map(tf.constant, arguments(steps))), looped(*arguments(steps), reverse=reverse))


@pytest.mark.tf_only
def test_reversed_in_onnx():
    """A loop in ONNX returns its results in the order of its steps, whatever index they are written to."""
    import tensorflow as tf

    convert = pytest.importorskip("tf2onnx").convert.from_function
    session = pytest.importorskip("onnxruntime").InferenceSession
    specs = [tf.TensorSpec([None] * x.ndim, x.dtype, name=name) for name, x in zip("wstab", arguments(), strict=True)]

    @tf.function
    def run(*inputs):
        return keras.tree.flatten(scanned(*inputs, reverse=True))

    model, _ = convert(run, input_signature=specs)
    found = session(model.SerializeToString()).run(None, dict(zip("wstab", arguments(), strict=True)))
    close(found, keras.tree.flatten(looped(*arguments(), reverse=True)))


@pytest.mark.tf_only
def test_length_known_at_run_time_only():
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def count(n):
        return scan(lambda carry, _: (carry + 1, carry), tf.constant(0), length=n)

    for n in (1, 6):
        last, seen = count(n)
        assert int(last) == n
        assert seen.numpy().tolist() == list(range(n))


def test_the_length_must_be_known():
    with pytest.raises(ValueError, match="`xs` or `length`"):
        scan(lambda carry, x: (carry, x), 0.0)
