"""What a model holds of each position, for models that read the rest of their sequences later."""

from __future__ import annotations

from contextvars import ContextVar

from keras import ops

from lmzoo.tensor_types import Tensor

EXPORTING = ContextVar("exporting", default=False)  # whether code is traced for a model to serve


def positions_from(cache: Tensor, index: int | Tensor, count: int | Tensor) -> Tensor:
    """`count` positions of a cache (B, T, H), from `index` on."""
    return ops.slice(cache, (0, index, 0), (ops.shape(cache)[0], count, cache.shape[2]))


def with_positions(cache: Tensor, new: Tensor, index: int | Tensor, axis: int = 1) -> Tensor:
    """A cache that holds `new` from position `index` of an axis on: (B, T, H), or of more axes."""
    new, before = ops.cast(new, cache.dtype), (slice(None),) * axis
    if not EXPORTING.get():
        return ops.slice_update(cache, [0] * axis + [index] + [0] * (len(cache.shape) - axis - 1), new)
    # Without the op of XLA, which servers do not have.
    after = index + ops.shape(new)[axis]
    return ops.concatenate([cache[*before, :index], new, cache[*before, after:]], axis=axis)
