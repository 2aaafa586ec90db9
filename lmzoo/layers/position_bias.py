"""Bias on attention scores that depends on the distance between query and key.

Raffel et al., 2020 (https://arxiv.org/abs/1910.10683), section 2.1.

Letters in shape comments: B sequences, T positions of the inputs, S new positions, M chosen positions, N heads.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.initializers import TruncatedNormal


@keras.saving.register_keras_serializable(package="lmzoo")
class RelativePositionBias(ConfiguredLayer):
    """Learned bias on attention scores, one number for each head and bucket of distances.

    Half of the buckets are for keys up to the query's position, the other half for later keys. In each half, the first
    half of the buckets hold one distance each, and the rest hold logarithmically spaced ranges up to `max_distance`.
    All longer distances share the last bucket. For causal attention, which sees no later keys, all buckets are for keys
    up to the query's position.

    Args:
        num_heads: int, number of attention heads, N.
        num_buckets: int, number of buckets, even and at least 4.
        max_distance: int, distance at which the ranges end. It must be more than `num_buckets` / 4 or, with `causal`,
            more than `num_buckets` / 2.
        causal: bool, whether the bias is for causal attention. Later keys then share the bucket of distance 0.
        initializer_range: float, standard deviation of the truncated normal initializer.

    Call arguments: `inputs` float (B, T, H), of which only the length matters; `positions` optional int (B, M),
    positions of the queries, by default all. Returns float (1, N, T, T), or (B, N, M, T) with `positions`, for the
    argument `bias` of `SelfAttention`.

    Raises:
        ValueError: If `num_buckets` or `max_distance` is out of range.

    Example:

    ```python
    import numpy as np
    from lmzoo.layers import RelativePositionBias, SelfAttention

    x, mask = np.ones((2, 5, 12), "float32"), np.ones((2, 5), bool)
    bias = RelativePositionBias(num_heads=3)(x)  # (1, 3, 5, 5)
    SelfAttention(num_heads=3, hidden_dim=12)(x, mask, bias=bias).shape  # (2, 5, 12)
    ```
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        initializer_range: float = 0.02,
        causal: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        is_valid = is_integer(num_buckets, 4) and num_buckets % 2 == 0
        require(is_valid, "num_buckets", "an even integer of at least 4", num_buckets)
        minimum = num_buckets // (2 if causal else 4) + 1
        require(is_integer(max_distance, minimum), "max_distance", f"an integer of at least {minimum}", max_distance)
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.initializer_range = initializer_range
        self.causal = causal

    def build(self, input_shape: Shape) -> None:
        """Create the table of biases."""
        initializer = TruncatedNormal(stddev=self.initializer_range)
        shape = (self.num_buckets, self.num_heads)
        self.embeddings = self.add_weight(shape=shape, initializer=initializer, name="embeddings")

    def call(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the bias for every pair of query and key."""
        length = ops.shape(inputs)[1]
        distance_biases = ops.transpose(
            ops.take(self.embeddings, self._compute_cyclic_buckets(length), axis=0)
        )  # (N, 2T)
        # `distance_biases` has a period of 2T numbers, and row q of the bias starts q numbers further left. Cutting the
        # repeated numbers into rows of 2T - 1 gives these shifts. The gradient of this is a sum; the gradient of a
        # lookup for each pair would be a scatter.
        rows = ops.broadcast_to(distance_biases[:, None], (self.num_heads, length, 2 * length))  # (N, T, 2T)
        rows = ops.reshape(rows, (self.num_heads, 2 * length * length))
        rows = ops.slice(rows, (0, 0), (self.num_heads, length * (2 * length - 1)))
        rows = ops.reshape(rows, (self.num_heads, length, 2 * length - 1))
        bias = ops.slice(rows, (0, 0, 0), (self.num_heads, length, length))  # (N, T, T)
        if positions is None:
            return ops.expand_dims(bias, 0)  # (1, N, T, T)
        chosen_bias = ops.take(ops.transpose(bias, (1, 0, 2)), positions, axis=0)  # (B, M, N, T)
        return ops.transpose(chosen_bias, (0, 2, 1, 3))  # (B, N, M, T)

    def step_bias(self, index: int | Tensor, count: int | Tensor, length: int | Tensor) -> Tensor:
        """Return the bias, float (1, N, S, T), for new positions in sequences with a cache.

        Args:
            index: int or int tensor (), position of the first query.
            count: number of queries, S.
            length: number of keys, T.
        """
        query_positions = ops.arange(count, dtype="int32") + index  # (S,)
        distances = ops.arange(length, dtype="int32") - query_positions[:, None]  # (S, T)
        buckets = self._compute_buckets_at(ops.abs(distances), distances > 0)  # (S, T)
        bias = ops.take(ops.cast(self.embeddings, self.compute_dtype), buckets, axis=0)  # (S, T, N)
        return ops.expand_dims(ops.transpose(bias, (2, 0, 1)), 0)

    def _compute_cyclic_buckets(self, length: int | Tensor) -> Tensor:
        """Return the buckets, int (2T,), of the distances 0, ..., T - 1, -T, 1 - T, ..., -1 from a query to a key."""
        distances = ops.arange(2 * length, dtype="int32")  # (2T,)
        is_after = ops.logical_and(distances > 0, distances < length)  # (2T,)
        return self._compute_buckets_at(ops.minimum(distances, 2 * length - distances), is_after)

    def _compute_buckets_at(self, distances: Tensor, is_after: Tensor) -> Tensor:
        """Return the buckets of keys, int (...), given their absolute distances from the query, int (...).

        `is_after`, bool (...), is True for keys after the query.
        """
        is_reached = distances[..., None] >= ops.convert_to_tensor(self._compute_bounds(), "int32")  # (..., bounds)
        buckets = ops.sum(ops.cast(is_reached, "int32"), axis=-1)  # (...)
        later_buckets = 0 if self.causal else buckets + self.num_buckets // 2
        return ops.where(is_after, later_buckets, buckets)

    def _compute_bounds(self) -> list[int]:
        """Return the smallest distance in each bucket of one direction, except the first bucket."""
        num_buckets = self.num_buckets if self.causal else self.num_buckets // 2
        num_exact = num_buckets // 2  # buckets of one distance each
        num_ranges = num_buckets - num_exact
        bounds = list(range(1, num_exact + 1))
        distance = num_exact
        for range_index in range(1, num_ranges):
            # distance / num_exact must reach (max_distance / num_exact) ** (range_index / num_ranges). Integers avoid
            # rounding, on which the result must not depend.
            while (
                distance**num_ranges * num_exact**range_index < self.max_distance**range_index * num_exact**num_ranges
            ):
                distance += 1
            bounds.append(distance)
        return bounds

    def compute_output_spec(self, inputs: Tensor, positions: Tensor | None = None) -> keras.KerasTensor:
        """Return the spec of the bias for all queries, or for the queries at `positions`."""
        length = inputs.shape[1]
        batch, num_queries = (1, length) if positions is None else positions.shape
        return keras.KerasTensor((batch, self.num_heads, num_queries, length), self.compute_dtype)
