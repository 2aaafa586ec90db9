"""Reshaping and indexing of tensors by rows."""

from __future__ import annotations

import keras
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor


def as_rows(x: Tensor) -> Tensor:
    """Return vectors (..., H) as the rows of a matrix (n, H).

    On CPUs, XLA takes 1.6 times as long for the gradient of a product with a tensor of three axes.
    """
    return ops.reshape(x, (-1, x.shape[-1]))


def gather_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Return the entries of `x` (B, T, ...) at non-negative `positions`, int (B, M), as a tensor (B, M, ...).

    On TensorFlow, `keras.ops.take_along_axis` uses a separate index for each number. This function copies whole rows,
    so that beam search, which reorders its caches in every step, takes a quarter of the time.
    """
    if keras.backend.backend() == "jax":
        # With several devices, each device takes entries from its shard of the batch.
        indices = ops.reshape(positions, (*ops.shape(positions), *[1] * (len(x.shape) - 2)))  # (B, M, 1, ...)
        return ops.take_along_axis(x, indices, axis=1)
    batch, length = ops.shape(x)[:2]
    rows = ops.reshape(x, (-1, *ops.shape(x)[2:]))  # (B·T, ...)
    # One flat gather, whose gradient is one scatter.
    return ops.take(rows, positions + length * ops.arange(batch, dtype=positions.dtype)[:, None], axis=0)


def get_width(shape: Shape) -> int:
    """Return the length of a shape's last axis, which layers need to create their weights.

    Raises:
        ValueError: If the length is unknown.
    """
    if (width := shape[-1]) is None:
        raise ValueError(f"The length of the last axis must be known to create weights, got the shape {shape}.")
    return width
