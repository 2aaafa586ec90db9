"""Tensors as matrices of rows, and entries at chosen positions."""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import ops

from lmzoo.tensor_types import Shape, Tensor

_ALIASED = 512  # columns, 2 kB of float32
_APART = 16  # columns


def as_rows(x: Tensor) -> Tensor:
    """`x` (..., H) as a matrix (n, H).

    On CPUs, XLA takes 1.6 times as long for the gradient of a product with a tensor of three axes.
    """
    return ops.reshape(x, (-1, x.shape[-1]))


def product_with(kernel: Tensor, uses: int | None = None) -> Callable[[Tensor], Tensor]:
    """`x @ kernel` as a function of `x` (n, rows of the kernel), for a loop that calls it in every step.

    To multiply few rows, CPUs read down the columns of a kernel. If its rows are a multiple of 2 kB long, those entries
    share a few places in the cache. With a copy whose rows are slightly longer, a product with 32 rows takes as little
    as 0.4 of the time. `uses` is the number of calls, if it is known: for a single one a copy is not worth it.
    """
    columns = kernel.shape[1]
    if uses == 1 or columns % _ALIASED:
        return lambda x: ops.matmul(x, kernel)
    longer = ops.pad(kernel, ((0, 0), (0, _APART)))
    return lambda x: ops.matmul(x, longer)[:, :columns]


def at_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Entries of the second axis of a tensor (B, T, ...), by int (B, M) of at least 0: (B, M, ...).

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
    """The length of the last axis, which layers must know to create their weights.

    Raises:
        ValueError: if it is unknown.
    """
    if (width := shape[-1]) is None:
        raise ValueError(f"The length of the last axis must be known to create weights, got the shape {shape}.")
    return width
