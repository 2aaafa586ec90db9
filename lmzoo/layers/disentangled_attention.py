"""Disentangled attention, and the distance embeddings that it uses.

He et al., 2020 (https://arxiv.org/abs/2006.03654).

Letters in shape comments: B sequences, T positions of the keys, S positions of the queries, R = 2T + 1 distances, N
heads, D width of a head, H = N·D hidden width.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.attention import SelfAttention, softmax_over_keys
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.layers.mask_values import MASKED
from lmzoo.layers.normalization import LayerNorm
from lmzoo.layers.relative_attention import gather_at_keys

_TERMS = 3  # number of terms in a score
_MAX_DISTANCE = 1 << 16  # no sequence is longer; keeps the array small for unusual configurations


def compute_buckets(bucket_size: int, max_distance: int) -> np.ndarray:
    """Return the table row for each distance between a query and a key, in a table of 2·`bucket_size` rows.

    Distances of up to half of `bucket_size` have rows of their own. Longer distances share rows on a logarithmic scale
    that ends at `max_distance` - 1. The scale is computed in float32, as in the training of the published models.

    Args:
        bucket_size: int, number of rows for distances in each direction, at least 2.
        max_distance: int, one more than the longest distance on the scale, at least 2.

    Returns:
        int32 (2L + 1,), the rows of the distances from -L to L. All distances beyond L have the first or the last row.

    Example:

    ```python
    from lmzoo.layers.disentangled_attention import compute_buckets

    rows = compute_buckets(bucket_size=4, max_distance=9)
    longest = len(rows) // 2
    rows[longest : longest + 5]  # [4, 5, 6, 7, 7]
    ```
    """
    max_exact = bucket_size // 2
    log_range = np.log(np.float32((max_distance - 1) / max_exact))
    saturation_distance = _compute_saturation_distance(bucket_size, max_exact, max_distance)
    distances = np.arange(saturation_distance + 1)
    buckets = distances.copy()
    is_far = distances > max_exact
    if log_range > 0:
        ratios = distances[is_far].astype("float32") / np.float32(max_exact)
        buckets[is_far] = np.ceil(np.log(ratios) / log_range * np.float32(max_exact - 1)).astype("int64") + max_exact
    else:  # the logarithmic scale is empty
        buckets[is_far] = bucket_size
    signed_buckets = np.concatenate([-buckets[:0:-1], buckets])
    return np.clip(signed_buckets + bucket_size, 0, 2 * bucket_size - 1).astype("int32")


def _compute_saturation_distance(bucket_size: int, max_exact: int, max_distance: int) -> int:
    """Return a distance beyond which all distances share a row."""
    if max_exact < 2 or max_distance - 1 <= max_exact:
        return max_exact + 1
    power = (bucket_size - max_exact) / (max_exact - 1)
    exponent = math.log(max_exact) + power * math.log((max_distance - 1) / max_exact)
    return int(math.exp(min(exponent, math.log(_MAX_DISTANCE)))) + 1


@keras.saving.register_keras_serializable(package="lmzoo")
class DistanceEmbedding(ConfiguredLayer):
    """Normalized vectors for the distances between queries and keys, from a table shared by all blocks.

    Args:
        bucket_size: int, number of rows for distances in each direction; see `compute_buckets`.
        max_distance: int, one more than the longest distance on the logarithmic scale.
        layer_norm_epsilon: float, added to the variance in LayerNorm.
        initializer_range: float, standard deviation of the truncated normal initializer.

    Call argument: `inputs` float (B, T, H), of which only the shape matters. Returns float (2T + 1, H), the vectors of
    the distances from T down to -T: row r is for a key that is T - r positions before the query.

    Example:

    ```python
    import numpy as np
    from lmzoo.layers import DistanceEmbedding

    DistanceEmbedding(bucket_size=6, max_distance=19)(np.ones((1, 5, 12), "float32")).shape  # (11, 12)
    ```
    """

    def __init__(
        self,
        bucket_size: int,
        max_distance: int,
        layer_norm_epsilon: float = 1e-7,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.bucket_size = bucket_size
        self.max_distance = max_distance
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer_range = initializer_range
        self.layer_norm = LayerNorm(epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="layer_norm")
        self._rows = compute_buckets(bucket_size, max_distance)

    def build(self, input_shape: Shape) -> None:
        """Create the table and the weights of LayerNorm."""
        shape = (2 * self.bucket_size, input_shape[-1])
        initializer = TruncatedNormal(stddev=self.initializer_range)
        self.embeddings = self.add_weight(shape=shape, initializer=initializer, name="embeddings")
        self.layer_norm.build(shape)

    def call(self, inputs: Tensor) -> Tensor:
        """Return a vector for each distance in sequences of the inputs' length."""
        length = ops.shape(inputs)[1]  # T
        saturation_distance = len(self._rows) // 2
        distances = length - ops.arange(2 * length + 1, dtype="int32")  # (R,)
        rows = ops.take(
            self._rows, ops.clip(distances, -saturation_distance, saturation_distance) + saturation_distance
        )  # (R,)
        # The shape is restated for TensorFlow, whose gradient of `take` would be sparse otherwise.
        table = ops.reshape(self.layer_norm(self.embeddings), self.embeddings.shape)
        return ops.take(table, rows, axis=0)  # (R, H)

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        """Return the spec of the vectors, one for each distance."""
        length = inputs.shape[1]
        return keras.KerasTensor((None if length is None else 2 * length + 1, inputs.shape[-1]), self.compute_dtype)


@keras.saving.register_keras_serializable(package="lmzoo")
class DisentangledAttention(SelfAttention):
    """Multi-head attention whose scores depend on contents and on distances (He et al., 2020, section 3.1).

    For a query q and a key k that is d positions before q, the score is (q·k + q·K(r_d) + Q(r_d)·k) / √(3D), where r_d
    is the vector of the distance d, Q and K are the projections that also compute queries and keys from contents, and D
    is the width of a head.

    Args:
        num_heads: int, number of heads, N.
        hidden_dim: int, width H of the inputs and outputs; a multiple of `num_heads`.
        dropout: float, rate for the attention probabilities and the distance vectors in training.
        initializer_range: float, standard deviation of the kernels' truncated normal initializer.

    Call arguments:
        inputs: float (B, T, H), the vectors to attend to.
        padding_mask: bool (B, T), True at real tokens.
        distances: float (2T + 1, H), the vectors of the distances; see `DistanceEmbedding`.
        queries: optional float (B, S, H), the vectors to attend from, by default `inputs`.
        positions: with `queries`, int (B, S), positions of the queries among the inputs.

    Returns float (B, T, H), or (B, S, H) with `queries`.

    Example:

    ```python
    import numpy as np
    from lmzoo.layers import DisentangledAttention, DistanceEmbedding

    x, mask = np.ones((1, 5, 12), "float32"), np.ones((1, 5), bool)
    distances = DistanceEmbedding(bucket_size=6, max_distance=19)(x)
    DisentangledAttention(num_heads=3, hidden_dim=12)(x, mask, distances).shape  # (1, 5, 12)
    ```
    """

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        dropout: float = 0.0,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        # There is no argument `mask`, since only padding is ever hidden.
        super().__init__(num_heads, hidden_dim, dropout, initializer_range, **kwargs)

    def call(  # type: ignore[override]
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        distances: Tensor,
        queries: Tensor | None = None,
        positions: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Return the attention output at every position, or for `queries`.

        Raises:
            ValueError: If `queries` are passed without `positions`.
        """
        if queries is not None and positions is None:
            raise ValueError("`queries` need `positions`, where they stand among the inputs.")
        if queries is None:
            query, key, value = self._project_to_heads(inputs, self.query, self.key, self.value)  # (B, N, T, D)
        else:
            (query,) = self._project_to_heads(queries, self.query)  # (B, N, S, D)
            key, value = self._project_to_heads(inputs, self.key, self.value)  # (B, N, T, D)
        distance_vectors = self.dropout(distances, training=training)  # (R, H)
        probabilities = self._compute_probabilities(
            query, key, padding_mask, distance_vectors, positions
        )  # (B, N, S, T)
        context = ops.matmul(self.dropout(probabilities, training=training), value)  # (B, N, S, D)
        return self._join_and_project_heads(context, ops.shape(inputs if queries is None else queries))  # (B, S, H)

    def _compute_probabilities(
        self, query: Tensor, key: Tensor, padding_mask: Tensor, distance_vectors: Tensor, positions: Tensor | None
    ) -> Tensor:
        """Return the attention probabilities of queries (B, N, S, D) over keys (B, N, T, D), float (B, N, S, T)."""
        scale = (_TERMS * query.shape[-1]) ** -0.5
        query = query * ops.cast(scale, query.dtype)
        distance_queries = self._project_distance_vectors(distance_vectors, self.query, key)  # (B, N, D, R)
        distance_keys = self._project_distance_vectors(distance_vectors, self.key, key)  # (B, N, D, R)
        content_scores = ops.matmul(query, ops.swapaxes(key, 2, 3))  # (B, N, S, T)
        query_scores = ops.matmul(query, distance_keys)  # (B, N, S, R)
        # From a key's point of view, distances to later queries come last.
        key_scores = ops.matmul(key * ops.cast(scale, key.dtype), ops.flip(distance_queries, axis=3))  # (B, N, T, R)
        length = ops.shape(key)[2]
        if positions is None:
            query_scores = gather_at_keys(query_scores, length)  # (B, N, T, T)
            key_scores = gather_at_keys(key_scores, length)  # (B, N, T, T)
        else:
            offsets = ops.expand_dims(positions, 2) - ops.arange(length, dtype=positions.dtype)  # (B, S, T)
            query_scores = ops.take_along_axis(query_scores, (length - offsets)[:, None], axis=3)  # (B, N, S, T)
            offsets = ops.swapaxes(offsets, 1, 2)  # (B, T, S)
            key_scores = ops.take_along_axis(key_scores, (length + offsets)[:, None], axis=3)  # (B, N, T, S)
        terms = content_scores, query_scores, ops.swapaxes(key_scores, 2, 3)
        scores = sum(ops.cast(term, "float32") for term in terms)  # (B, N, S, T)
        scores = scores + ops.cast(ops.expand_dims(ops.where(padding_mask, 0.0, MASKED), (1, 2)), "float32")
        return ops.cast(softmax_over_keys(scores), query.dtype)

    def _project_distance_vectors(self, distance_vectors: Tensor, layer: keras.layers.Dense, key: Tensor) -> Tensor:
        """Project the distance vectors with `layer`, split them into heads, and repeat them for each sequence of `key`.

        Returns:
            The vectors, float (B, N, D, R).
        """
        (projected_vectors,) = self._project_to_heads(distance_vectors[None], layer, join=False)  # (1, N, R, D)
        projected_vectors = ops.swapaxes(projected_vectors, 2, 3)  # (1, N, D, R)
        # Repeated explicitly, since the gradient of TensorFlow's broadcasting product may crash.
        return ops.broadcast_to(projected_vectors, (ops.shape(key)[0], *ops.shape(projected_vectors)[1:]))

    def scores(  # type: ignore[override]
        self, inputs: Tensor, padding_mask: Tensor, distances: Tensor
    ) -> Tensor:
        """Return the attention probabilities of `call`, (B, N, T, T), without dropout."""
        query, key = self._project_to_heads(inputs, self.query, self.key)  # (B, N, T, D)
        return self._compute_probabilities(query, key, padding_mask, distances, None)

    def compute_output_spec(  # type: ignore[override]
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        distances: Tensor,
        queries: Tensor | None = None,
        positions: Tensor | None = None,
        training: bool = False,
    ) -> keras.KerasTensor:
        """Return the spec of the output, which is shaped like the queries."""
        return keras.KerasTensor((inputs if queries is None else queries).shape, self.compute_dtype)
