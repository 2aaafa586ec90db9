"""Local attention, whose time and memory grow linearly with the length of the sequences.

As in Longformer (Beltagy et al., 2020, https://arxiv.org/abs/2004.05150), each block of queries is compared with the
keys of its own block and of the two neighboring blocks. Letters in shape comments are as in `attention.py`; C is the
length of a block, and K the number of blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from keras import ops

from lmzoo.common.tensor_types import Tensor
from lmzoo.layers.mask_values import MASKED, OUT_OF_SIGHT


def prefers_blocks(length: int | Tensor, reach: int) -> bool:
    """Return whether to use `attention_in_blocks` instead of masking all pairs of positions.

    Blocks are not worthwhile in sequences of up to three blocks, where most pairs of positions see each other anyway.
    If the length is a tensor, as in TensorFlow graphs, blocks are used at any length. Since a block is never longer
    than the sequence, a sequence of up to `reach` positions then takes three times as many scores as with a mask.
    """
    return not isinstance(length, int) or length > 3 * reach


def attention_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    padding_mask: Tensor,
    reach: int,
    dropout: Callable[[Tensor], Tensor],
) -> Tensor:
    """Compute local attention in blocks: each query attends to the real keys at most `reach` positions away.

    Args:
        query: float (B, N, T, D), the queries.
        key: float (B, N, T, D), the keys.
        value: float (B, N, T, D), the values.
        padding_mask: bool (B, T), True at real tokens.
        reach: int, largest distance, in either direction, at which a query sees a key.
        dropout: function to apply to the attention probabilities, (B, N, K, C, 3C).

    Returns:
        The attention output, float (B, N, T, D), equal to the output with `attention_probabilities` and this `reach`.
    """
    length = ops.shape(query)[2]
    block_length = min(length, reach) if isinstance(length, int) else ops.minimum(length, reach)
    num_blocks = (length + block_length - 1) // block_length
    num_extra = num_blocks * block_length - length  # positions that fill the last block
    queries = _split_blocks(_pad(query, 0, num_extra), num_blocks, block_length)  # (B, N, K, C, D)
    queries = queries * ops.cast(query.shape[-1] ** -0.5, query.dtype)
    keys = _join_neighbors(
        _split_blocks(_pad(key, block_length, block_length + num_extra), num_blocks + 2, block_length)
    )  # (B, N, K, 3C, D)
    values = _join_neighbors(
        _split_blocks(_pad(value, block_length, block_length + num_extra), num_blocks + 2, block_length)
    )  # (B, N, K, 3C, D)
    scores = ops.cast(ops.matmul(queries, ops.swapaxes(keys, 3, 4)), "float32")  # (B, N, K, C, 3C)
    probabilities = ops.softmax(scores + _make_mask_bias(padding_mask, num_blocks, block_length, num_extra, reach))
    context = ops.matmul(dropout(ops.cast(probabilities, query.dtype)), values)  # (B, N, K, C, D)
    shape = ops.shape(query)
    context = ops.reshape(context, (*shape[:2], num_blocks * block_length, shape[3]))
    # Not `context[:, :, :length]`, whose gradient takes several times as long on TensorFlow.
    return ops.slice(context, (0, 0, 0, 0), shape)


def _pad(x: Tensor, before: int | Tensor, after: int | Tensor) -> Tensor:
    """Pad a tensor (B, N, T, D) with `before` and `after` zero vectors along T."""
    batch, num_heads, _, width = ops.shape(x)
    tensors = [
        ops.zeros((batch, num_heads, before, width), x.dtype),
        x,
        ops.zeros((batch, num_heads, after, width), x.dtype),
    ]
    return ops.concatenate(tensors, axis=2)


def _split_blocks(x: Tensor, num_blocks: int | Tensor, block_length: int | Tensor) -> Tensor:
    """Split a tensor (B, N, K·C, D) into K blocks of length C, (B, N, K, C, D)."""
    batch, num_heads, _, width = ops.shape(x)
    return ops.reshape(x, (batch, num_heads, num_blocks, block_length, width))


def _join_neighbors(blocks: Tensor, axis: int = 2) -> Tensor:
    """Concatenate each inner block with its two neighbors, where `axis` is the axis of blocks.

    With `axis=2`, (B, N, K + 2, C, D) becomes (B, N, K, 3C, D).
    """
    num_blocks = ops.shape(blocks)[axis] - 2
    start = [0] * len(blocks.shape)
    shape = list(ops.shape(blocks))
    shape[axis] = num_blocks
    shifted_blocks = []
    for offset in range(3):
        start[axis] = offset
        shifted_blocks.append(ops.slice(blocks, start, shape))
    return ops.concatenate(shifted_blocks, axis=axis + 1)


def _make_mask_bias(
    mask: Tensor, num_blocks: int | Tensor, block_length: int | Tensor, num_extra: int | Tensor, reach: int
) -> Tensor:
    """Return the bias, float32 (B, 1, K, C, 3C), that hides padding and the keys out of reach.

    Args:
        mask: bool (B, T), True at real tokens.
        num_blocks: number of blocks, K.
        block_length: length of a block, C.
        num_extra: number of positions that fill the last block.
        reach: largest distance, in either direction, at which a query sees a key.
    """
    batch = ops.shape(mask)[0]
    key_bias = ops.cast(ops.where(mask, 0.0, MASKED), "float32")  # (B, T)
    outer_biases = [
        ops.full((batch, width), OUT_OF_SIGHT, "float32") for width in (block_length, block_length + num_extra)
    ]
    key_bias = ops.concatenate([outer_biases[0], key_bias, outer_biases[1]], axis=1)  # (B, (K + 2)·C)
    key_bias = _join_neighbors(ops.reshape(key_bias, (batch, num_blocks + 2, block_length)), axis=1)  # (B, K, 3C)
    distances = ops.arange(3 * block_length) - block_length - ops.expand_dims(ops.arange(block_length), 1)  # (C, 3C)
    pair_bias = ops.cast(ops.where(ops.abs(distances) > reach, OUT_OF_SIGHT, 0.0), "float32")
    return ops.expand_dims(key_bias, (1, 3)) + pair_bias
