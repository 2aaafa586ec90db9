"""Attention with relative positions and segments, in one or two streams, with a memory.

Dai et al., 2019 (https://arxiv.org/abs/1901.02860), and Yang et al., 2019 (https://arxiv.org/abs/1906.08237).

Letters in shape comments: B sequences, T positions of the inputs, P positions of the memory, K = P + T keys, S queries
of either stream, M queries of the query stream, R = K + T distances, N heads, D width of a head, H = N·D hidden width.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.adapted import EinsumDense
from lmzoo.layers.attention import softmax_over_keys
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.dropout import Dropout
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.layers.mask_values import MASKED


@keras.saving.register_keras_serializable(package="lmzoo")
class RelativeEncoding(ConfiguredLayer):
    """Sinusoidal encodings of all distances between queries and keys (Dai et al., 2019, section 3.3).

    Args:
        dropout: float, dropout rate of the encodings in training.

    Call arguments: `inputs` float (B, T, H), where H is even; `memory` optional float (B, P, H), vectors that precede
    the inputs. Only the shapes of both matter. Returns float (P + 2T, H), the encodings of the distances from P + T
    down to 1 - T: row r is for a key that is P + T - r positions before the query.
    """

    def __init__(self, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self.built = True

    def call(self, inputs: Tensor, memory: Tensor | None = None, training: bool = False) -> Tensor:
        """Return the encodings."""
        length, width = ops.shape(inputs)[1], inputs.shape[-1]
        num_keys = length if memory is None else length + ops.shape(memory)[1]  # K
        distances = ops.cast(num_keys - ops.arange(num_keys + length), "float32")  # (R,)
        frequencies = 10_000.0 ** (-ops.arange(0, width, 2, dtype="float32") / width)  # (H / 2,)
        angles = distances[:, None] * frequencies  # (R, H / 2)
        encodings = ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)  # (R, H)
        return self.dropout(ops.cast(encodings, self.compute_dtype), training=training)

    def compute_output_spec(
        self, inputs: Tensor, memory: Tensor | None = None, training: bool = False
    ) -> keras.KerasTensor:
        """Return the spec of the encodings, one for each distance."""
        lengths = [inputs.shape[1], inputs.shape[1], 0 if memory is None else memory.shape[1]]
        return keras.KerasTensor((None if None in lengths else sum(lengths), inputs.shape[-1]), self.compute_dtype)


@keras.saving.register_keras_serializable(package="lmzoo")
class RelativeAttention(ConfiguredLayer):
    """Multi-head attention whose scores depend on contents, distances, and whether two tokens share a segment.

    For a query q and a key k at distance d, the score is ((q + u)·k + (q + v)·r_d + (q + w)·s) / √D. Here r_d is a
    projection of the distance's encoding, s is one of two vectors, for the same or a different segment, u, v and w are
    learned biases of each head, and D is the width of a head (Dai et al., 2019, section 3.3; Yang et al., 2019,
    section 2.5).

    With `queries`, there are two streams with the same weights: a content stream, from `inputs`, and a query stream.
    Queries are at chosen positions and attend to the contents that `query_mask` shows, usually not to the token at
    their own position. The result for a query that sees no key is zeros.

    Args:
        num_heads: int, number of heads, N.
        hidden_dim: int, width H of the inputs and outputs; a multiple of `num_heads`.
        dropout: float, rate for the attention probabilities in training.
        initializer_range: float, standard deviation of the truncated normal initializer of all weights.

    Call arguments:
        inputs: float (B, T, H), vectors of the content stream.
        encodings: float (P + 2T, H), encodings of distances; see `RelativeEncoding`.
        mask: bool (B, T or 1, K), whether each input sees each of the K = P + T keys; the memory's keys come first.
        apart: bool (B, T, K), whether each key is in a different segment than the input.
        queries: optional float (B, M, H), vectors of the query stream.
        positions: with `queries`, int (B, M), positions of the queries among the inputs.
        query_mask: with `queries`, bool (B, M, K), whether each query sees each key.
        query_apart: with `queries`, bool (B, M, K), whether each key is in a different segment than the query.
        memory: optional float (B, P, H), vectors that precede the inputs, used only for keys and values.

    Returns float (B, T, H); with `queries` also float (B, M, H).

    Raises:
        ValueError: If `hidden_dim` is not a multiple of `num_heads`.

    Example:

    ```python
    import numpy as np
    from lmzoo.layers import RelativeAttention, RelativeEncoding

    x, sees, apart = np.ones((1, 5, 12), "float32"), np.ones((1, 1, 5), bool), np.zeros((1, 5, 5), bool)
    RelativeAttention(num_heads=3, hidden_dim=12)(x, RelativeEncoding()(x), sees, apart).shape  # (1, 5, 12)
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
        super().__init__(**kwargs)
        if hidden_dim % num_heads:
            raise ValueError(f"`hidden_dim` ({hidden_dim}) must be a multiple of `num_heads` ({num_heads}).")
        self.num_heads, self.hidden_dim, self.initializer_range = num_heads, hidden_dim, initializer_range
        head_shape = num_heads, hidden_dim // num_heads
        self.query, self.key, self.value = (
            self._make_dense("bth,hnd->btnd", (None, *head_shape), name) for name in ("query", "key", "value")
        )
        self.distance = self._make_dense("rh,hnd->rnd", head_shape, "distance")
        self.output_dense = self._make_dense("btnd,hnd->bth", (None, hidden_dim), "output_dense")
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def _make_dense(self, equation: str, shape: tuple[int | None, ...], name: str) -> keras.layers.EinsumDense:
        initializer = TruncatedNormal(stddev=self.initializer_range)
        return EinsumDense(equation, shape, kernel_initializer=initializer, dtype=self.dtype_policy, name=name)

    def build(self, input_shape: Shape) -> None:
        """Create the projections, the biases and the segment vectors."""
        head_shape = self.num_heads, self.hidden_dim // self.num_heads
        for dense in (self.query, self.key, self.value):
            dense.build((None, None, self.hidden_dim))
        self.distance.build((None, self.hidden_dim))
        self.output_dense.build((None, None, *head_shape))
        self.content_bias = self._add_normal_weight("content_bias", head_shape)
        self.distance_bias = self._add_normal_weight("distance_bias", head_shape)
        self.segment_bias = self._add_normal_weight("segment_bias", head_shape)
        self.segments = self._add_normal_weight("segments", (2, *head_shape))

    def _add_normal_weight(self, name: str, shape: tuple[int, ...]) -> keras.Variable:
        return self.add_weight(shape=shape, initializer=TruncatedNormal(stddev=self.initializer_range), name=name)

    def call(
        self,
        inputs: Tensor,
        encodings: Tensor,
        mask: Tensor,
        apart: Tensor,
        queries: Tensor | None = None,
        positions: Tensor | None = None,
        query_mask: Tensor | None = None,
        query_apart: Tensor | None = None,
        memory: Tensor | None = None,
        training: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the attention output for the inputs and, if there are `queries`, for the queries.

        Raises:
            ValueError: If `queries` are passed without `query_mask` or without `query_apart`.
        """
        key_inputs = inputs if memory is None else ops.concatenate([ops.cast(memory, inputs.dtype), inputs], axis=1)
        keys = ops.transpose(self.key(key_inputs), (0, 2, 3, 1))  # (B, N, D, K)
        values = ops.transpose(self.value(key_inputs), (0, 2, 1, 3))  # (B, N, K, D)
        distance_keys = ops.transpose(self.distance(encodings), (1, 2, 0))  # (N, D, R)

        def attend(x: Tensor, mask: Tensor, apart: Tensor, positions: Tensor | None) -> Tensor:
            probabilities = self._compute_probabilities(x, keys, distance_keys, mask, apart, positions)  # (B, N, S, K)
            context = ops.matmul(self.dropout(probabilities, training=training), values)  # (B, N, S, D)
            sees_any = ops.any(mask, axis=-1, keepdims=True)[:, None]  # (B, 1, S, 1)
            context = ops.where(sees_any, context, ops.zeros_like(context))
            return self.output_dense(ops.transpose(context, (0, 2, 1, 3)))  # (B, S, H)

        content_output = attend(inputs, mask, apart, None)
        if queries is None:
            return content_output
        if query_mask is None or query_apart is None:
            raise ValueError("`queries` need `query_mask` and `query_apart`.")
        return content_output, attend(queries, query_mask, query_apart, positions)

    def _compute_probabilities(
        self,
        x: Tensor,
        keys: Tensor,
        distance_keys: Tensor,
        mask: Tensor,
        apart: Tensor,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Compute queries from `x`, (B, S, H), and return their attention probabilities, float (B, N, S, K)."""
        scale = (self.hidden_dim // self.num_heads) ** -0.5
        query = self.query(x) * ops.cast(scale, x.dtype)  # (B, S, N, D)

        def add_bias(bias: Tensor) -> Tensor:
            return ops.transpose(query + bias * ops.cast(scale, bias.dtype), (0, 2, 1, 3))  # (B, N, S, D)

        def repeat_for_batch(x: Tensor) -> Tensor:
            # (N, D, n) -> (B, N, D, n), since the gradient of TensorFlow's broadcasting product may crash.
            return ops.broadcast_to(x, (ops.shape(keys)[0], *ops.shape(x)))

        content_scores = ops.matmul(add_bias(self.content_bias), keys)  # (B, N, S, K)
        distance_scores = ops.matmul(add_bias(self.distance_bias), repeat_for_batch(distance_keys))  # (B, N, S, R)
        distance_scores = gather_at_keys(distance_scores, ops.shape(keys)[3], positions)  # (B, N, S, K)
        segments = repeat_for_batch(ops.transpose(self.segments, (1, 2, 0)))  # (B, N, D, 2)
        segment_scores = ops.matmul(add_bias(self.segment_bias), segments)  # (B, N, S, 2)
        segment_scores = ops.where(apart[:, None], segment_scores[..., 1:], segment_scores[..., :1])  # (B, N, S, K)
        scores = ops.cast(content_scores + distance_scores + segment_scores, "float32")
        scores = scores + ops.cast(ops.where(mask, 0.0, MASKED), "float32")[:, None]
        return ops.cast(softmax_over_keys(scores), x.dtype)

    def scores(self, inputs: Tensor, encodings: Tensor, mask: Tensor, apart: Tensor) -> Tensor:
        """Return the inputs' attention probabilities without memory and dropout, float (B, N, T, T)."""
        keys = ops.transpose(self.key(inputs), (0, 2, 3, 1))  # (B, N, D, T)
        distance_keys = ops.transpose(self.distance(encodings), (1, 2, 0))  # (N, D, R)
        return self._compute_probabilities(inputs, keys, distance_keys, mask, apart)

    def compute_output_spec(
        self, inputs: Tensor, *args: Any, queries: Tensor | None = None, **kwargs: Any
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, keras.KerasTensor]:
        """Return the specs of the outputs for the inputs and, if there are `queries`, for the queries."""
        queries = args[3] if len(args) > 3 else queries
        specs = tuple(keras.KerasTensor(x.shape, self.compute_dtype) for x in (inputs, queries) if x is not None)
        return specs if len(specs) == 2 else specs[0]


def gather_at_keys(by_distance: Tensor, keys: int | Tensor, positions: Tensor | None = None) -> Tensor:
    """Return the scores of all keys, (B, N, S, K), given the scores of all distances, (B, N, S, R).

    `keys` is the number of keys, K. The queries are at all positions, or at `positions`, int (B, S).
    """
    batch, num_heads, num_queries, num_distances = ops.shape(by_distance)
    if positions is not None:
        length = num_distances - keys  # T
        distance_indices = ops.arange(keys, dtype=positions.dtype) + (length - positions)[..., None]  # (B, S, K)
        return ops.take_along_axis(by_distance, distance_indices[:, None], axis=3)
    # Shift each row by one more than the row before it (Dai et al., 2019, appendix B). On TensorFlow, the gradient of
    # `x[:, :, 1:]` takes eight times as long as the gradient of `ops.slice`.
    x = ops.reshape(by_distance, (batch, num_heads, num_distances, num_queries))
    x = ops.slice(x, (0, 0, 1, 0), (batch, num_heads, num_distances - 1, num_queries))
    x = ops.reshape(x, (batch, num_heads, num_queries, num_distances - 1))
    return ops.slice(x, (0, 0, 0, 0), (batch, num_heads, num_queries, keys))
