"""What a model holds of each position, for models that read the rest of their sequences later."""

from __future__ import annotations

from keras import ops

from lmzoo.tensor_types import Tensor


def positions_from(cache: Tensor, index: int | Tensor, count: int | Tensor) -> Tensor:
    """`count` positions of a cache (B, T, H), from `index` on."""
    return ops.slice(cache, (0, index, 0), (ops.shape(cache)[0], count, cache.shape[2]))


def with_positions(cache: Tensor, new: Tensor, index: int | Tensor) -> Tensor:
    """A cache (B, T, H) that holds `new` (B, S, H) from position `index` on."""
    return ops.slice_update(cache, (0, index, 0), ops.cast(new, cache.dtype))
