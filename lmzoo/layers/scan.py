"""Loop over the first axis of tensors, with the semantics of `jax.lax.scan` on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor, Tensors

Step = Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]


def scan(
    f: Step,
    init: Tensors,
    xs: Tensors = None,
    length: int | None = None,
    reverse: bool = False,
    tensor_lists: bool = True,
) -> tuple[Tensors, Tensors]:
    """Run `carry, y = f(carry, x)` along the first axis of `xs`, with the semantics of `jax.lax.scan`.

    TensorFlow and JAX compile a single copy of `f`. Values and gradients are the same in eager code, in graphs and
    under XLA. (On TensorFlow, `keras.ops.scan` loses its gradients under `jit_compile=True`.)

    Args:
        f: the step, a pure function; on JAX, it must not draw random seeds.
        init: structure of tensors, the initial carry. Every later carry must have the same shapes and dtypes.
        xs: structure of tensors (n, ...); each step gets their next slices, (...), as `x`. None to pass None as `x`.
        length: int or int32 tensor (), number of steps n; required if `xs` is None.
        reverse: bool, whether to start from the last slice; each `y` is still stored at the index of its `x`.
        tensor_lists: bool, whether TensorFlow's graphs may hold lists of tensors, which LiteRT does not support. With
            False, n must be at least 1, and every step copies the `y`s of the steps before it.

    Returns:
        The last carry, and the stacked `y`s: a structure of tensors (n, ...), or None if the steps return None.

    Raises:
        ValueError: If neither `xs` nor `length` is given.

    Example:

    ```python
    import numpy as np
    from lmzoo.layers.scan import scan

    total, sums = scan(lambda total, x: (total + x, total + x), np.float32(0), np.arange(4, dtype="float32"))
    # 6.0, [0.0, 1.0, 3.0, 6.0]
    ```
    """
    if xs is None and length is None:
        raise ValueError("`scan` needs `xs` or `length`.")
    init = _map(ops.convert_to_tensor, init)
    xs = _map(ops.convert_to_tensor, xs)
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        # Outside of `jit`, `jax.lax.scan` would compile at every call.
        if any(isinstance(leaf, jax.core.Tracer) for leaf in _list_leaves((init, xs))):
            return jax.lax.scan(f, init, xs, length=length, reverse=reverse)
    if length is None:
        length = ops.shape(_list_leaves(xs)[0])[0]
    if backend == "tensorflow":
        import tensorflow as tf

        # A single step, such as reading one generated token, needs no loop.
        if not tf.executing_eagerly() and not (isinstance(length, int) and length == 1):
            scan_function = _scan_in_tensorflow if tensor_lists else _scan_in_tensorflow_without_lists
            return scan_function(f, init, xs, length, reverse)
    return _scan_in_python(f, init, xs, int(length), reverse)


def _map(function: Callable[..., Tensors], *structures: Tensors) -> Tensors:
    """Apply `function` to the leaves of structures, and leave None unchanged, as in JAX."""
    return keras.tree.map_structure(lambda *leaves: None if leaves[0] is None else function(*leaves), *structures)


def _list_leaves(structure: Tensors) -> list[Tensor]:
    """Return the tensors of a structure as a list, without None."""
    return [leaf for leaf in keras.tree.flatten(structure) if leaf is not None]


def _scan_in_python(f: Step, carry: Tensors, xs: Tensors, length: int, reverse: bool) -> tuple[Tensors, Tensors]:
    """Scan in a Python loop."""
    ys: list[Any] = [None] * length
    for i in reversed(range(length)) if reverse else range(length):
        carry, ys[i] = f(carry, _map(lambda x, i=i: x[i], xs))
    return carry, _map(lambda *y: ops.stack(y), *ys)


def _make_tensorflow_step(f: Step) -> Step:
    """Return a step that calls `f`, converts its results to tensors, and keeps the static shapes of the carry."""
    import tensorflow as tf

    def step(carry: Tensors, x: Tensor) -> tuple[Tensors, Tensors]:
        new_carry, y = f(carry, x)
        new_carry = _map(lambda new, old: tf.ensure_shape(new, old.shape), new_carry, carry)
        return new_carry, _map(tf.convert_to_tensor, y)

    return step


def _scan_in_tensorflow(
    f: Step, init: Tensors, xs: Tensors, length: int | Tensor, reverse: bool
) -> tuple[Tensors, Tensors]:
    """Scan in a TensorFlow loop that reads from and writes to lists of tensors."""
    import tensorflow as tf

    step = _make_tensorflow_step(f)
    # `step` is traced once more for the specs of its results, which must be allocated before the loop.
    x_spec = _map(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), xs)
    carry_spec = _map(lambda c: tf.TensorSpec(c.shape, c.dtype), init)
    specs = tf.function(step, autograph=False).get_concrete_function(carry_spec, x_spec).structured_outputs[1]
    results = [tf.TensorArray(y.dtype, length, element_shape=y.shape) for y in _list_leaves(specs)]
    # Inputs are read from a TensorArray, since the gradient of x[i] would be as large as x in every step.
    inputs = _map(lambda x: tf.TensorArray(x.dtype, length, element_shape=x.shape[1:]).unstack(x), xs)

    def body(i: Tensor, carry: Tensors, results: Tensors) -> tuple[Tensor, Tensors, Tensors]:
        index = length - 1 - i if reverse else i
        carry, y = step(carry, _map(lambda array: array.read(index), inputs))
        # Results are written in the order of the steps, since tf2onnx ignores the index.
        return i + 1, carry, [array.write(i, value) for array, value in zip(results, _list_leaves(y), strict=True)]

    _, carry, results = tf.while_loop(
        lambda i, *_: i < length, body, (tf.constant(0), init, results), maximum_iterations=length
    )
    stacked_results = [array.stack() for array in results]  # (n, ...) each
    leaves = iter([tf.reverse(ys, [0]) for ys in stacked_results] if reverse else stacked_results)
    return carry, _map(lambda _: next(leaves), specs)


def _scan_in_tensorflow_without_lists(
    f: Step, init: Tensors, xs: Tensors, length: int | Tensor, reverse: bool
) -> tuple[Tensors, Tensors]:
    """Scan in a TensorFlow loop that appends each step's results to tensors; see `tensor_lists` of `scan`."""
    import tensorflow as tf

    step = _make_tensorflow_step(f)

    def take_slices(i: int | Tensor) -> Tensors:
        return _map(lambda x: tf.gather(x, length - 1 - i if reverse else i), xs)

    def append(results: Tensor, value: Tensor) -> Tensor:
        return tf.concat([value[None], results] if reverse else [results, value[None]], axis=0)

    def body(i: Tensor, carry: Tensors, results: list[Tensor]) -> tuple[Tensor, Tensors, list[Tensor]]:
        carry, y = step(carry, take_slices(i))
        return i + 1, carry, [append(*pair) for pair in zip(results, _list_leaves(y), strict=True)]

    # The first step is outside of the loop, since the shapes of the results are known only from its results.
    carry, first_y = step(init, take_slices(0))
    results = [value[None] for value in _list_leaves(first_y)]  # (1, ...)
    carry_shapes = _map(lambda c: c.shape, carry)
    result_shapes = [tf.TensorShape([None, *value.shape]) for value in _list_leaves(first_y)]
    _, carry, results = tf.while_loop(
        lambda i, *_: i < length,
        body,
        (tf.constant(1), carry, results),
        shape_invariants=(tf.TensorShape([]), carry_shapes, result_shapes),
    )
    remaining_results = iter(results)
    return carry, _map(lambda _: next(remaining_results), first_y)
