"""Tensors as matrices of rows, and entries at chosen positions."""

from __future__ import annotations

import keras
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor


def as_rows(x: Tensor) -> Tensor:
    """Return `x` (..., H) as a matrix (n, H).

    On CPUs, XLA takes 1.6 times as long for the gradient of a product with a tensor of three axes.
    """
    return ops.reshape(x, (-1, x.shape[-1]))


def at_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Return the entries of the second axis of a tensor (B, T, ...), by int (B, M) of at least 0: (B, M, ...).

    On TensorFlow, `keras.ops.take_along_axis` copies each number by an index of its own. This copies rows: beam search,
    which chooses among its caches in each step, takes a quarter of the time.
    """
    if keras.backend.backend() == "jax":
        # Each device takes from its own part of the batch.
        indices = ops.reshape(positions, (*ops.shape(positions), *[1] * (len(x.shape) - 2)))  # (B, M, 1, ...)
        return ops.take_along_axis(x, indices, axis=1)
    batch, length = ops.shape(x)[:2]
    flat = ops.reshape(x, (-1, *ops.shape(x)[2:]))  # (B·T, ...)
    # One flat gather, whose gradient is one scatter.
    return ops.take(flat, positions + length * ops.arange(batch, dtype=positions.dtype)[:, None], axis=0)


def width_of(shape: Shape) -> int:
    """Return the length of the last axis, which layers must know to create their weights.

    Raises:
        ValueError: if it is unknown.
    """
    if (width := shape[-1]) is None:
        raise ValueError(f"The length of the last axis must be known to create weights, got the shape {shape}.")
    return width
