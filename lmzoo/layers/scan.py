"""A loop over the first axis, for layers that repeat a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor, Tensors

Step = Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]


def scan(
    f: Step, init: Tensors, xs: Tensors = None, length: int | None = None, reverse: bool = False
) -> tuple[Tensors, Tensors]:
    """Run `carry, y = f(carry, x)` along the first axis of `xs`, with the semantics of `jax.lax.scan`.

    On TensorFlow and JAX it compiles to one copy of `f`. (On TensorFlow `keras.ops.scan` loses its gradients under
    `jit_compile=True`.) Values and gradients are the same eagerly, in graphs and under XLA.

    Args:
        f: the step, a pure function. On JAX random seeds must be drawn outside of it.
        init: structure of tensors, the first carry. Every later carry must have the same shapes and dtypes.
        xs: structure of tensors (n, ...), of which each step gets the slices (...); None for steps whose `x` is None.
        length: n, an int or an int32 scalar tensor; needed only if `xs` is None.
        reverse: whether to start from the last slice; each `y` is stored at the index of its `x`.

    Returns:
        The last carry, and the `y`s stacked: a structure of tensors (n, ...), or None if steps return None.

    Raises:
        ValueError: if neither `xs` nor `length` is given.

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
    init, xs = _map(ops.convert_to_tensor, init), _map(ops.convert_to_tensor, xs)
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        # Outside of `jit`, `jax.lax.scan` would compile at every call.
        if any(isinstance(leaf, jax.core.Tracer) for leaf in _leaves((init, xs))):
            return jax.lax.scan(f, init, xs, length=length, reverse=reverse)
    if length is None:
        length = ops.shape(_leaves(xs)[0])[0]
    if backend == "tensorflow":
        import tensorflow as tf

        # A single step, such as that of a token that is generated, needs no loop.
        if not tf.executing_eagerly() and not (isinstance(length, int) and length == 1):
            return _tf_scan(f, init, xs, length, reverse)
    return _python_scan(f, init, xs, int(length), reverse)


def _map(function: Callable[..., Tensors], *structures: Tensors) -> Tensors:
    """Apply `function` to each leaf; None is not a leaf, as in JAX."""
    return keras.tree.map_structure(lambda *leaves: None if leaves[0] is None else function(*leaves), *structures)


def _leaves(structure: Tensors) -> list[Tensor]:
    return [leaf for leaf in keras.tree.flatten(structure) if leaf is not None]


def _python_scan(f: Step, carry: Tensors, xs: Tensors, length: int, reverse: bool) -> tuple[Tensors, Tensors]:
    ys: list[Any] = [None] * length
    for i in reversed(range(length)) if reverse else range(length):
        carry, ys[i] = f(carry, _map(lambda x, i=i: x[i], xs))
    return carry, _map(lambda *y: ops.stack(y), *ys)


def _tf_scan(f: Step, init: Tensors, xs: Tensors, length: int | Tensor, reverse: bool) -> tuple[Tensors, Tensors]:
    import tensorflow as tf

    def step(carry: Tensors, x: Tensor) -> tuple[Tensors, Tensors]:
        after, y = f(carry, x)
        # Every step keeps the known shapes of the carry.
        after = _map(lambda new, old: tf.ensure_shape(new, old.shape), after, carry)
        return after, _map(tf.convert_to_tensor, y)

    # One extra trace: the storage for the results must exist before the loop.
    first = _map(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), xs)
    same = _map(lambda c: tf.TensorSpec(c.shape, c.dtype), init)
    specs = tf.function(step, autograph=False).get_concrete_function(same, first).structured_outputs[1]
    stored = [tf.TensorArray(y.dtype, length, element_shape=y.shape) for y in _leaves(specs)]
    # Read from a TensorArray: the gradient of x[i] would be as large as x at every step.
    inputs = _map(lambda x: tf.TensorArray(x.dtype, length, element_shape=x.shape[1:]).unstack(x), xs)

    def body(i: Tensor, carry: Tensors, stored: Tensors) -> tuple[Tensor, Tensors, Tensors]:
        at = length - 1 - i if reverse else i
        carry, y = step(carry, _map(lambda array: array.read(at), inputs))
        return i + 1, carry, [array.write(at, value) for array, value in zip(stored, _leaves(y), strict=True)]

    _, carry, stored = tf.while_loop(
        lambda i, *_: i < length, body, (tf.constant(0), init, stored), maximum_iterations=length
    )
    stacked = iter(stored)
    return carry, _map(lambda _: next(stacked).stack(), specs)
