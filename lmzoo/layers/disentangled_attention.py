"""Disentangled attention, and the embedding of distances that it reads.

He et al., 2020 (https://arxiv.org/abs/2006.03654).

Letters in shape comments: B batch, T positions of the keys, S positions of the queries, R = 2T + 1 distances, N heads,
D width of a head, H = N·D hidden width.
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
from lmzoo.layers.relative_attention import at_keys

_TERMS = 3  # of a score, whose sum is scaled as a whole
_MAX_DISTANCE = 1 << 16  # no sequence is longer, so that an odd configuration makes no huge table


def bucket_of_distances(bucket_size: int, max_distance: int) -> np.ndarray:
    """Return the row of a table of 2·`bucket_size` vectors for each distance between a query and a key.

    Distances of less than half of `bucket_size` have a row of their own. Longer ones share rows on a logarithmic scale,
    which ends at `max_distance`. They are computed in float32, as the published models were trained.

    Args:
        bucket_size: int, at least 2, rows for distances in each direction.
        max_distance: int, at least 2, one more than the longest distance on the scale.

    Returns:
        int32 (2L + 1,), the rows of the distances from -L to L. All longer distances have the first or last row.

    Example:

    ```python
    from lmzoo.layers.disentangled_attention import bucket_of_distances

    rows = bucket_of_distances(bucket_size=4, max_distance=9)
    longest = len(rows) // 2
    rows[longest : longest + 5]  # [4, 5, 6, 7, 7]
    ```
    """
    middle = bucket_size // 2
    scale = np.log(np.float32((max_distance - 1) / middle))
    longest = _saturation_distance(bucket_size, middle, max_distance)
    distances = np.arange(longest + 1)
    buckets = distances.copy()
    far = distances > middle
    if scale > 0:
        ratios = distances[far].astype("float32") / np.float32(middle)
        buckets[far] = np.ceil(np.log(ratios) / scale * np.float32(middle - 1)).astype("int64") + middle
    else:  # no distance that the model was made for is so long
        buckets[far] = bucket_size
    both = np.concatenate([-buckets[:0:-1], buckets])
    return np.clip(both + bucket_size, 0, 2 * bucket_size - 1).astype("int32")


def _saturation_distance(bucket_size: int, middle: int, max_distance: int) -> int:
    """Return a distance beyond which all distances share a row."""
    if middle < 2 or max_distance - 1 <= middle:
        return middle + 1
    power = (bucket_size - middle) / (middle - 1)
    exponent = math.log(middle) + power * math.log((max_distance - 1) / middle)
    return int(math.exp(min(exponent, math.log(_MAX_DISTANCE)))) + 1


@keras.saving.register_keras_serializable(package="lmzoo")
class DistanceEmbedding(ConfiguredLayer):
    """Normalized vectors of the distances between queries and keys, from a table that all blocks share.

    Args:
        bucket_size: int, rows for distances in each direction; see `bucket_of_distances`.
        max_distance: int, one more than the longest distance on the scale.
        layer_norm_epsilon: float.
        initializer_range: float, standard deviation of the truncated normal initializer.

    Call argument: `inputs` float (B, T, H), of which only the shape matters. Returns float (R, H): row r is for keys at
    the distance T - r before the query, from T down to -T.

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
        self._rows = bucket_of_distances(bucket_size, max_distance)

    def build(self, input_shape: Shape) -> None:
        """Create the table and the normalization."""
        shape = (2 * self.bucket_size, input_shape[-1])
        initializer = TruncatedNormal(stddev=self.initializer_range)
        self.embeddings = self.add_weight(shape=shape, initializer=initializer, name="embeddings")
        self.layer_norm.build(shape)

    def call(self, inputs: Tensor) -> Tensor:
        """Return the vectors of all distances in sequences as long as the inputs."""
        length = ops.shape(inputs)[1]  # T
        longest = len(self._rows) // 2
        distances = length - ops.arange(2 * length + 1, dtype="int32")  # (R,)
        rows = ops.take(self._rows, ops.clip(distances, -longest, longest) + longest)  # (R,)
        # The shape is restated for TensorFlow, whose gradient of `take` would be sparse otherwise.
        table = ops.reshape(self.layer_norm(self.embeddings), self.embeddings.shape)
        return ops.take(table, rows, axis=0)  # (R, H)

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        """Return a vector for each distance."""
        length = inputs.shape[1]
        return keras.KerasTensor((None if length is None else 2 * length + 1, inputs.shape[-1]), self.compute_dtype)


@keras.saving.register_keras_serializable(package="lmzoo")
class DisentangledAttention(SelfAttention):
    """Multi-head attention whose scores depend on contents and on distances (He et al., 2020, section 3.1).

    The score of a query q for a key k at the distance d before it is (q·k + q·K(r_d) + Q(r_d)·k) / √(3D), where r_d is
    the vector of the distance, projected as the contents are to keys and queries.

    Args:
        num_heads: int, N.
        hidden_dim: int, H; a multiple of `num_heads`.
        dropout: float, rate for the attention probabilities and the vectors of distances in training.
        initializer_range: float, standard deviation of the kernels' truncated normal initializer.

    Call arguments:
        inputs: float (B, T, H).
        padding_mask: bool (B, T), True at real tokens.
        distances: float (R, H), see `DistanceEmbedding`.
        queries: optional float (B, S, H), the vectors of `inputs` whose results are wanted.
        positions: with `queries`, int (B, S), where they stand among the inputs.

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
        # Of `mask` there is only one kind.
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
        """Attend from every position, or from `queries`, to the real tokens.

        Raises:
            ValueError: for `queries` without `positions`.
        """
        if queries is not None and positions is None:
            raise ValueError("`queries` need `positions`, where they stand among the inputs.")
        if queries is None:
            query, key, value = self._heads(inputs, self.query, self.key, self.value)  # (B, N, T, D)
        else:
            (query,) = self._heads(queries, self.query)  # (B, N, S, D)
            key, value = self._heads(inputs, self.key, self.value)  # (B, N, T, D)
        distances = self.dropout(distances, training=training)  # (R, H)
        probabilities = self._probabilities(query, key, padding_mask, distances, positions)  # (B, N, S, T)
        context = ops.matmul(self.dropout(probabilities, training=training), value)  # (B, N, S, D)
        return self._joined_heads(context, ops.shape(inputs if queries is None else queries))  # (B, S, H)

    def _probabilities(
        self, query: Tensor, key: Tensor, padding_mask: Tensor, distances: Tensor, positions: Tensor | None
    ) -> Tensor:
        """Return the attention probabilities, (B, N, S, T), of queries (B, N, S, D) for keys (B, N, T, D)."""
        scale = (_TERMS * query.shape[-1]) ** -0.5
        query = query * ops.cast(scale, query.dtype)
        of_queries = self._project_distances(distances, self.query, key)  # (B, N, D, R)
        of_keys = self._project_distances(distances, self.key, key)  # (B, N, D, R)
        by_content = ops.matmul(query, ops.swapaxes(key, 2, 3))  # (B, N, S, T)
        from_queries = ops.matmul(query, of_keys)  # (B, N, S, R)
        # Seen from a key, distances to later queries come last.
        from_keys = ops.matmul(key * ops.cast(scale, key.dtype), ops.flip(of_queries, axis=3))  # (B, N, T, R)
        length = ops.shape(key)[2]
        if positions is None:
            from_queries = at_keys(from_queries, length)  # (B, N, T, T)
            from_keys = at_keys(from_keys, length)  # (B, N, T, T)
        else:
            before = positions[..., None] - ops.arange(length, dtype=positions.dtype)  # (B, S, T)
            from_queries = ops.take_along_axis(from_queries, (length - before)[:, None], axis=3)  # (B, N, S, T)
            before = ops.swapaxes(before, 1, 2)  # (B, T, S)
            from_keys = ops.take_along_axis(from_keys, (length + before)[:, None], axis=3)  # (B, N, T, S)
        terms = by_content, from_queries, ops.swapaxes(from_keys, 2, 3)
        scores = sum(ops.cast(term, "float32") for term in terms)  # (B, N, S, T)
        scores = scores + ops.cast(ops.expand_dims(ops.where(padding_mask, 0.0, MASKED), (1, 2)), "float32")
        return ops.cast(softmax_over_keys(scores), query.dtype)

    def _project_distances(self, distances: Tensor, layer: keras.layers.Dense, key: Tensor) -> Tensor:
        """Project the distances by a layer, and return the heads for each sequence, (B, N, D, R)."""
        (heads,) = self._heads(distances[None], layer, join=False)  # (1, N, R, D)
        heads = ops.swapaxes(heads, 2, 3)  # (1, N, D, R)
        # TensorFlow's gradient of a product that repeats it itself may crash.
        return ops.broadcast_to(heads, (ops.shape(key)[0], *ops.shape(heads)[1:]))

    def scores(  # type: ignore[override]
        self, inputs: Tensor, padding_mask: Tensor, distances: Tensor
    ) -> Tensor:
        """Return the attention probabilities, (B, N, T, T), that `call` uses outside of training."""
        query, key = self._heads(inputs, self.query, self.key)  # (B, N, T, D)
        return self._probabilities(query, key, padding_mask, distances, None)

    def compute_output_spec(  # type: ignore[override]
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        distances: Tensor,
        queries: Tensor | None = None,
        positions: Tensor | None = None,
        training: bool = False,
    ) -> keras.KerasTensor:
        """Return the shape of the queries."""
        return keras.KerasTensor((inputs if queries is None else queries).shape, self.compute_dtype)
