"""Reading and writing of caches with an entry for each position, for step-by-step generation."""

from __future__ import annotations

import math

import keras
from keras import ops

from lmzoo.common.arguments import is_integer
from lmzoo.common.tensor_types import Tensor


def check_room(room: int | None, num_new: int | None, index: int | Tensor) -> None:
    """Check that a cache of `room` positions has room for `num_new` positions from `index` on.

    On TensorFlow, positions beyond the end would be written into the cache of the next sequence.

    Args:
        room: number of positions in the cache, or None in a graph where it is unknown.
        num_new: number of new positions, or None in a graph where it is unknown.
        index: the first of the new positions. If it is a tensor, only `room` and `num_new` are compared.

    Raises:
        ValueError: If the new positions do not fit into the cache.
    """
    if room is None or num_new is None:
        return
    first_position = index if is_integer(index) else 0
    if not 0 <= first_position <= room - num_new:
        raise ValueError(
            f"{num_new} positions from {first_position} on do not fit into a cache of {room}. Pass a larger `length` "
            "to `empty_cache`."
        )


def read_positions(cache: Tensor, index: int | Tensor, count: int | Tensor) -> Tensor:
    """Return the entries of a cache (B, T, H) at `count` consecutive positions, starting at `index`."""
    return ops.slice(cache, (0, index, 0), (ops.shape(cache)[0], count, cache.shape[2]))


def write_positions(cache: Tensor, new: Tensor, index: int | Tensor, axis: int = 1) -> Tensor:
    """Return a copy of `cache` in which `new` is written along `axis`, the axis of positions, from `index` on."""
    new = ops.cast(new, cache.dtype)
    if keras.backend.backend() != "tensorflow":
        return ops.slice_update(cache, [0] * axis + [index] + [0] * (len(cache.shape) - axis - 1), new)
    # On TensorFlow, `slice_update` is an XLA op, which is compiled for each shape and is missing in servers.
    shape = ops.shape(cache)
    num_new = ops.shape(new)[axis]
    trailing_shape = shape[axis + 1 :]
    first_rows = ops.arange(math.prod(shape[:axis]), dtype="int32") * shape[axis] + index  # (n,), first rows to replace
    rows = ops.reshape(ops.expand_dims(first_rows, 1) + ops.arange(num_new, dtype="int32"), (-1, 1))  # (n·S, 1)
    flat_cache = ops.reshape(cache, (-1, *trailing_shape))  # (n·T, ...)
    updated_cache = ops.scatter_update(flat_cache, rows, ops.reshape(new, (-1, *trailing_shape)))
    return ops.reshape(updated_cache, shape)
