"""What a model holds of each position, for models that read the rest of their sequences later."""

from __future__ import annotations

import math

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor


def positions_from(cache: Tensor, index: int | Tensor, count: int | Tensor) -> Tensor:
    """Return `count` positions of a cache (B, T, H), from `index` on."""
    return ops.slice(cache, (0, index, 0), (ops.shape(cache)[0], count, cache.shape[2]))


def with_positions(cache: Tensor, new: Tensor, index: int | Tensor, axis: int = 1) -> Tensor:
    """Return a cache that holds `new` from position `index` of an axis on: (B, T, H), or of more axes."""
    new = ops.cast(new, cache.dtype)
    if keras.backend.backend() != "tensorflow":
        return ops.slice_update(cache, [0] * axis + [index] + [0] * (len(cache.shape) - axis - 1), new)
    # There, `slice_update` is an op of XLA, which compiles it for each shape, and which servers do not have.
    shape, count = ops.shape(cache), ops.shape(new)[axis]
    rest = shape[axis + 1 :]
    first = ops.arange(math.prod(shape[:axis]), dtype="int32") * shape[axis] + index  # (n,), of the rows to replace
    rows = ops.reshape(ops.expand_dims(first, 1) + ops.arange(count, dtype="int32"), (-1, 1))  # (n·S, 1)
    held = ops.scatter_update(ops.reshape(cache, (-1, *rest)), rows, ops.reshape(new, (-1, *rest)))  # (n·T, ...)
    return ops.reshape(held, shape)
