"""Helpers for layers that work on the last axis alone."""

from __future__ import annotations

from keras import ops

from lmzoo.tensor_types import Shape, Tensor


def as_rows(x: Tensor) -> Tensor:
    """`x` (..., H) as a matrix (n, H).

    On CPUs, XLA takes 1.6 times as long for the gradient of a product with a tensor of three axes.
    """
    return ops.reshape(x, (-1, x.shape[-1]))


def width_of(shape: Shape) -> int:
    """The length of the last axis, which layers must know to create their weights.

    Raises:
        ValueError: if it is unknown.
    """
    if (width := shape[-1]) is None:
        raise ValueError(f"The length of the last axis must be known to create weights, got the shape {shape}.")
    return width
