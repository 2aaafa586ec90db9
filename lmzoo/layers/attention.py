"""Multi-head self-attention over right-padded batches.

Letters in shape comments: B batch, T positions, N heads, D width of a head, H = N·D hidden width.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.layers.dropout import Dropout

# Large enough that exp() of a masked score is exactly 0 beside any real one, small enough that a row without real keys
# stays finite (its softmax is then uniform).
_MASKED = -1e9


def _flash_attention(query: Any, key: Any, value: Any, padding_mask: Any) -> Any | None:
    """JAX's fused cuDNN attention where it applies, else None. Tensors are (B, T, N, D), the mask (B, T)."""
    if keras.backend.backend() != "jax" or query.dtype not in ("bfloat16", "float16"):
        return None
    import jax

    if jax.default_backend() != "gpu":
        return None
    return attention_by_length(query, key, value, padding_mask, implementation="cudnn")


def attention_by_length(query: Any, key: Any, value: Any, padding_mask: Any, implementation: str | None = None) -> Any:
    """`jax.nn.dot_product_attention` by sequence lengths, which needs no bias tensor (JAX backend only).

    Lengths describe a mask only if all its padding is at the right; for any other mask the ordinary form is taken, at
    run time, so that the result is right for every mask.

    Args:
        query: float tensor (B, T, N, D); `key` and `value` alike.
        key: see `query`.
        value: see `query`.
        padding_mask: bool tensor (B, T), True at real tokens.
        implementation: as in `jax.nn.dot_product_attention`.

    Returns:
        Float tensor (B, T, N, D).
    """
    import jax
    import jax.numpy as jnp

    lengths = jnp.sum(padding_mask, axis=1, dtype=jnp.int32)  # (B,)
    right_padded = jnp.all(padding_mask == (jnp.arange(padding_mask.shape[1]) < lengths[:, None]))

    def by_length(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=lengths, implementation=implementation)

    def by_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return jnp.einsum("bnts,bsnd->btnd", attention_probabilities(q, k, mask), v)

    return jax.lax.cond(right_padded, by_length, by_mask, query, key, value, padding_mask)


def attention_probabilities(query: Any, key: Any, padding_mask: Any) -> Any:
    """softmax(Q·Kᵀ/√D) over the real keys, computed in float32 (Vaswani et al., 2017, eq. 1).

    Args:
        query: float tensor (B, T, N, D).
        key: float tensor (B, T, N, D).
        padding_mask: bool tensor (B, T), True at real tokens.

    Returns:
        Tensor (B, N, T, T) of the query's dtype. The mask enters as a (B, 1, 1, T) bias: nothing of shape (B, T, T) is
        made for it.
    """
    query = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
    scores = ops.cast(ops.einsum("btnd,bsnd->bnts", query, key), "float32")  # (B, N, T, T)
    bias = ops.where(padding_mask, 0.0, _MASKED)[:, None, None, :]  # (B, 1, 1, T)
    scores = scores + ops.cast(bias, "float32")
    # Keras' softmax warns where there is but one key.
    probabilities = ops.softmax(scores) if scores.shape[-1] != 1 else ops.exp(ops.log_softmax(scores))
    return ops.cast(probabilities, query.dtype)


@keras.saving.register_keras_serializable(package="lmzoo")
class SelfAttention(keras.layers.Layer):
    """Multi-head self-attention with an output projection (Vaswani et al., 2017).

    Args:
        num_heads: int, N.
        hidden_dim: int, H; a multiple of `num_heads`.
        dropout: float, rate for the attention probabilities in training.
        initializer_range: float, standard deviation of the kernels' truncated normal initialiser.

    Call arguments: `inputs` float (B, T, H), `padding_mask` bool (B, T). Returns float (B, T, H).
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
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.initializer_range = initializer_range
        self.query, self.key, self.value, self.output_dense = (
            keras.layers.Dense(
                hidden_dim,
                kernel_initializer=keras.initializers.TruncatedNormal(stddev=initializer_range),
                dtype=self.dtype_policy,
                name=name,
            )
            for name in ("query", "key", "value", "output_dense")
        )
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the four projections."""
        for dense in (self.query, self.key, self.value, self.output_dense):
            dense.build(input_shape)
        self.built = True

    def _split_heads(self, x: Any) -> Any:
        shape = ops.shape(x)
        return ops.reshape(x, (shape[0], shape[1], self.num_heads, self.hidden_dim // self.num_heads))

    def call(self, inputs: Any, padding_mask: Any, training: bool = False) -> Any:
        """Attends from every position to the real ones."""
        query = self._split_heads(self.query(inputs))  # (B, T, N, D)
        key = self._split_heads(self.key(inputs))  # (B, T, N, D)
        value = self._split_heads(self.value(inputs))  # (B, T, N, D)
        context = None
        if not (training and self.dropout.rate):
            context = _flash_attention(query, key, value, padding_mask)
        if context is None:
            probabilities = attention_probabilities(query, key, padding_mask)  # (B, N, T, T)
            probabilities = self.dropout(probabilities, training=training)
            context = ops.einsum("bnts,bsnd->btnd", probabilities, value)  # (B, T, N, D)
        return self.output_dense(ops.reshape(context, ops.shape(inputs)))  # (B, T, H)

    def scores(self, inputs: Any, padding_mask: Any) -> Any:
        """The attention probabilities, (B, N, T, T), that `call` would use outside training."""
        query = self._split_heads(self.query(inputs))
        key = self._split_heads(self.key(inputs))
        return attention_probabilities(query, key, padding_mask)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "dropout": self.dropout.rate,
            "initializer_range": self.initializer_range,
        }
