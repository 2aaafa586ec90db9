"""Tensors reshaped to matrices."""

from __future__ import annotations

from keras import ops

from lmzoo.tensor_types import Tensor


def as_rows(x: Tensor) -> Tensor:
    """`x` (..., H) as a matrix (n, H).

    For layers that work on the last axis alone: on CPUs, XLA takes 1.6 times as long for the gradient of a product with
    a tensor of three axes.
    """
    return ops.reshape(x, (-1, x.shape[-1]))
