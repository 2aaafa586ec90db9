"""Multi-head self-attention over right-padded batches.

Letters in shape comments: B batch, T positions, S positions that ask, N heads, D width of a head, H = N·D hidden width.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.layers.dropout import Dropout
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.layers.rows import as_rows

# Large enough that exp() of a masked score is exactly 0 beside any real one, small enough that a row without real keys
# stays finite (its softmax is then uniform).
_MASKED = -1e9
_WIDEST_JOINED = 1024  # columns of a projection whose kernels are joined into one


# Kernels and biases of projections that need not be joined in every call: see `joined_projections`.
_JOINED: contextvars.ContextVar[dict[tuple[keras.layers.Dense, ...], list[Any]] | None] = contextvars.ContextVar(
    "joined", default=None
)


def _flash_attention(query: Any, key: Any, value: Any, padding_mask: Any) -> Any | None:
    """JAX's fused cuDNN attention where it applies, else None. Tensors are (B, N, T, D), the mask (B, T)."""
    if keras.backend.backend() != "jax" or query.dtype not in ("bfloat16", "float16"):
        return None
    import jax

    if jax.default_backend() != "gpu" or query.shape[-1] % 8 or query.shape[-1] > 128:  # what cuDNN has kernels for
        return None
    return attention_by_length(query, key, value, padding_mask, implementation="cudnn")


def attention_by_length(query: Any, key: Any, value: Any, padding_mask: Any, implementation: str | None = None) -> Any:
    """`jax.nn.dot_product_attention` by sequence lengths, which needs no bias tensor (JAX backend only).

    Lengths describe a mask only if all its padding is at the right; for any other mask the ordinary form is taken, at
    run time, so that the result is right for every mask.

    Args:
        query: float tensor (B, N, S, D), S being T or fewer positions.
        key: float tensor (B, N, T, D).
        value: float tensor (B, N, T, D).
        padding_mask: bool tensor (B, T), True at real tokens.
        implementation: as in `jax.nn.dot_product_attention`.

    Returns:
        Float tensor (B, N, S, D).
    """
    import jax
    import jax.numpy as jnp

    lengths = jnp.sum(padding_mask, axis=1, dtype=jnp.int32)  # (B,)
    right_padded = jnp.all(padding_mask == (jnp.arange(padding_mask.shape[1]) < lengths[:, None]))
    right_padded &= jnp.all(lengths > 0)  # kernels need not be finite for a row without keys

    def by_length(q: Any, k: Any, v: Any, mask: Any) -> Any:
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))  # (B, T, N, D)
        x = jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=lengths, implementation=implementation)
        return jnp.swapaxes(x, 1, 2)

    def by_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return attention_probabilities(q, k, mask) @ v

    return jax.lax.cond(right_padded, by_length, by_mask, query, key, value, padding_mask)


def attention_probabilities(query: Any, key: Any, padding_mask: Any) -> Any:
    """softmax(Q·Kᵀ/√D) over the real keys, computed in float32 (Vaswani et al., 2017, eq. 1).

    Args:
        query: float tensor (B, N, S, D), S being T or fewer positions.
        key: float tensor (B, N, T, D).
        padding_mask: bool tensor (B, T), True at real tokens.

    Returns:
        Tensor (B, N, S, T) of the query's dtype. The mask enters as a (B, 1, 1, T) bias: nothing of shape (B, T, T) is
        made for it.
    """
    query = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
    scores = ops.cast(ops.matmul(query, ops.swapaxes(key, 2, 3)), "float32")  # (B, N, S, T)
    bias = ops.expand_dims(ops.where(padding_mask, 0.0, _MASKED), (1, 2))  # (B, 1, 1, T)
    scores = scores + ops.cast(bias, "float32")
    # Keras' softmax warns where there is but one key.
    probabilities = ops.softmax(scores) if scores.shape[-1] != 1 else ops.exp(ops.log_softmax(scores))
    return ops.cast(probabilities, query.dtype)


def _transpose(x: Any, axes: tuple[int, ...]) -> Any:
    """`ops.transpose`; as integers in exported graphs, since oneDNN takes 0.1 ms for the smallest array of floats."""
    if not _JOINED.get():
        return ops.transpose(x, axes)
    import tensorflow as tf

    return tf.bitcast(tf.transpose(tf.bitcast(x, f"int{8 * x.dtype.size}"), axes), x.dtype)


@keras.saving.register_keras_serializable(package="lmzoo")
class SelfAttention(keras.layers.Layer):
    """Multi-head self-attention with an output projection (Vaswani et al., 2017).

    Args:
        num_heads: int, N.
        hidden_dim: int, H; a multiple of `num_heads`.
        dropout: float, rate for the attention probabilities in training.
        initializer_range: float, standard deviation of the kernels' truncated normal initialiser.

    Call arguments: `inputs` float (B, T, H), `padding_mask` bool (B, T), optionally `queries` float (B, S, H), the
    vectors of `inputs` whose results are wanted. Returns float (B, T, H), or (B, S, H) with `queries`.
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
                kernel_initializer=TruncatedNormal(stddev=initializer_range),
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

    def _heads(self, x: Any, *layers: keras.layers.Dense) -> list[Any]:
        """What `layers` make of `x` (B, T, H), split into heads: (B, N, T, D) each."""
        rows = as_rows(x)  # (B·T, H)
        special = any(layer.lora_enabled or layer.quantization_mode is not None for layer in layers)
        if beforehand := (_JOINED.get() or {}).get(layers):
            kernel, bias = beforehand  # (H, layers·H), (layers·H,)
            projected = ops.matmul(rows, kernel) + bias  # (B·T, layers·H)
        elif special or self.hidden_dim > _WIDEST_JOINED:
            projected = ops.concatenate([layer(rows) for layer in layers], axis=1)  # (B·T, layers·H)
        else:
            # One product is faster than several of a layer's width, until copying the kernels costs more than it saves.
            kernel = ops.concatenate([layer.kernel for layer in layers], axis=1)  # (H, layers·H)
            projected = ops.matmul(rows, kernel) + ops.concatenate([layer.bias for layer in layers], axis=0)
        shape = (*ops.shape(x)[:2], len(layers), self.num_heads, self.hidden_dim // self.num_heads)
        split = _transpose(ops.reshape(projected, shape), (2, 0, 3, 1, 4))  # (layers, B, N, T, D)
        return ops.unstack(split, len(layers), axis=0)

    def call(self, inputs: Any, padding_mask: Any, queries: Any = None, training: bool = False) -> Any:
        """Attends to the real positions, from every position or from `queries`."""
        if queries is None:
            queries = inputs
            query, key, value = self._heads(inputs, self.query, self.key, self.value)  # (B, N, T, D)
        else:
            (query,) = self._heads(queries, self.query)  # (B, N, S, D)
            key, value = self._heads(inputs, self.key, self.value)  # (B, N, T, D)
        context = None
        if not (training and self.dropout.rate):
            context = _flash_attention(query, key, value, padding_mask)
        if context is None:
            probabilities = attention_probabilities(query, key, padding_mask)  # (B, N, S, T)
            probabilities = self.dropout(probabilities, training=training)
            context = ops.matmul(probabilities, value)  # (B, N, S, D)
        context = ops.reshape(_transpose(context, (0, 2, 1, 3)), (-1, self.hidden_dim))  # (B·S, H)
        return ops.reshape(self.output_dense(context), ops.shape(queries))  # (B, S, H)

    def scores(self, inputs: Any, padding_mask: Any) -> Any:
        """The attention probabilities, (B, N, T, T), that `call` would use outside training."""
        query, key = self._heads(inputs, self.query, self.key)  # (B, N, T, D)
        return attention_probabilities(query, key, padding_mask)

    def compute_output_shape(
        self, inputs_shape: tuple[int | None, ...], padding_mask_shape: Any = None, queries_shape: Any = None
    ) -> tuple[int | None, ...]:
        """The shape of the vectors that ask."""
        return queries_shape or inputs_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "dropout": self.dropout.rate,
            "initializer_range": self.initializer_range,
        }


@contextlib.contextmanager
def joined_projections(layers: Iterable[SelfAttention]) -> Iterator[list[Any]]:
    """Joins kernels once and not in every call, for functions that are traced in the context (TensorFlow only).

    Such functions read copies of the weights as they are now; quantised layers stay as they are.

    Args:
        layers: whose projections to join.

    Yields:
        The copies, `tf.Variable`s, which have to be kept as long as the functions.
    """
    import tensorflow as tf

    joined = {}
    for layer in layers:
        for dense in ((layer.query, layer.key, layer.value), (layer.key, layer.value)):
            if all(part.quantization_mode is None for part in dense):
                weights = [[ops.convert_to_numpy(w) for w in (part.kernel, part.bias)] for part in dense]
                joined[dense] = [
                    tf.Variable(np.concatenate(parts, axis=-1), trainable=False, dtype=layer.compute_dtype)
                    for parts in zip(*weights, strict=True)
                ]
    token = _JOINED.set(joined)
    try:
        yield [variable for weights in joined.values() for variable in weights]
    finally:
        _JOINED.reset(token)
