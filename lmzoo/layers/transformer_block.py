"""The Transformer block, with LayerNorm after the residual sums or before the sublayers."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.layers.activations import get_activation
from lmzoo.layers.attention import Cache, SelfAttention
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.dropout import Dropout
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.layers.normalization import LayerNorm
from lmzoo.layers.remat import recomputed
from lmzoo.layers.rows import as_rows
from lmzoo.tensor_types import Shape, Tensor


@keras.saving.register_keras_serializable(package="lmzoo")
class TransformerBlock(ConfiguredLayer):
    """Self-attention and a two-layer feed-forward network, each with a residual sum and LayerNorm.

    With `norm="post"`, the original order (Vaswani et al., 2017, section 3.1), for inputs `x`:
    `a = LN₁(x + dropout(attention(x)))`, and the block returns `LN₂(a + dropout(W₂·act(W₁·a)))`.

    With `norm="pre"` (Radford et al., 2019, section 2.3): `a = x + dropout(attention(LN₁(x)))`, and the block returns
    `a + dropout(W₂·act(W₁·LN₂(a)))`. A model then needs one more LayerNorm after its last block.

    LN₁ is `attention_layer_norm`, LN₂ `output_layer_norm`.

    Args:
        num_heads: int.
        hidden_dim: int, H.
        intermediate_dim: int, width of the feed-forward network's hidden layer.
        activation: str, see `lmzoo.layers.get_activation`.
        dropout: float, rate for both residual branches and for the attention probabilities.
        layer_norm_epsilon: float.
        initializer_range: float, standard deviation of the truncated normal initialiser.
        mask: `"padding"` or `"causal"`, see `SelfAttention`.
        norm: `"post"` or `"pre"`, the place of LayerNorm.

    Call arguments and shapes of the results are those of `SelfAttention`. With `queries`, the last block of an encoder
    computes only the vectors that are wanted.

    With `block.remat = True`, training keeps only a block's inputs and outputs, and computes the rest again in the
    backward pass: see `lmzoo.models.Backbone`.
    """

    remat = False
    activation_dropout = False  # whether there is dropout after the activation, too

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        activation: str = "gelu",
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        mask: str = "padding",
        norm: str = "post",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if norm not in ("post", "pre"):
            raise ValueError(f'`norm` must be "post" or "pre", got {norm!r}.')
        self.norm, self.mask = norm, mask
        self.num_heads, self.hidden_dim, self.intermediate_dim = num_heads, hidden_dim, intermediate_dim
        self.activation = activation
        self.layer_norm_epsilon, self.initializer_range = layer_norm_epsilon, initializer_range
        policy = self.dtype_policy

        def dense(units: int, name: str) -> keras.layers.Dense:
            initializer = TruncatedNormal(stddev=initializer_range)
            return keras.layers.Dense(units, kernel_initializer=initializer, dtype=policy, name=name)

        def layer_norm(name: str) -> LayerNorm:
            return LayerNorm(epsilon=layer_norm_epsilon, dtype=policy, name=name)

        self.attention = self.make_attention(dropout)
        self.attention_layer_norm = layer_norm("attention_layer_norm")
        self.intermediate_dense = dense(intermediate_dim, "intermediate_dense")
        self.output_dense = dense(hidden_dim, "output_dense")
        self.output_layer_norm = layer_norm("output_layer_norm")
        self.dropout = Dropout(dropout, dtype=policy, name="dropout")

    def make_attention(self, dropout: float) -> keras.layers.Layer:
        """The attention layer."""
        return SelfAttention(
            self.num_heads,
            self.hidden_dim,
            dropout,
            self.initializer_range,
            self.mask,
            dtype=self.dtype_policy,
            name="attention",
        )

    def build(self, input_shape: Shape) -> None:
        """Creates the sublayers' weights."""
        for layer in (self.attention, self.attention_layer_norm, self.intermediate_dense, self.output_layer_norm):
            layer.build(input_shape)
        self.output_dense.build((*input_shape[:-1], self.intermediate_dim))
        self.built = True

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        queries: Tensor | None = None,
        cache: Cache | None = None,
        index: int | Tensor | None = None,
        training: bool = False,
    ) -> Tensor | tuple[Tensor, Cache]:
        """Applies the block.

        Raises:
            ValueError: see `SelfAttention.call`.
        """
        vectors = (inputs,) if queries is None else (inputs, queries)

        def apply(inputs: Tensor, queries: Tensor | None = None) -> Tensor | tuple[Tensor, Cache]:
            return self._apply(inputs, padding_mask, queries, cache, index, training)

        return recomputed(self, apply, *vectors) if self.remat and training else apply(*vectors)

    def _apply(
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        queries: Tensor | None,
        cache: Cache | None,
        index: int | Tensor | None,
        training: bool,
    ) -> Tensor | tuple[Tensor, Cache]:
        pre, residual = self.norm == "pre", inputs if queries is None else queries
        if pre:
            inputs = self.attention_layer_norm(inputs)  # (B, T, H)
            queries = None if queries is None else self.attention_layer_norm(queries)  # (B, S, H)
        x = self.attention(inputs, padding_mask, queries, cache=cache, index=index, training=training)  # (B, S, H)
        x, cache = (x, None) if cache is None else x
        x = self.add_feed_forward(residual, x, training)  # (B, S, H)
        return x if cache is None else (x, cache)

    def add_feed_forward(self, residual: Tensor, attended: Tensor, training: bool) -> Tensor:
        """The block's result, (B, S, H), from its input and what the attention found, before dropout."""
        x = residual + self.dropout(attended, training=training)
        if self.norm == "post":
            x = self.attention_layer_norm(x)
        y = self.output_layer_norm(x) if self.norm == "pre" else x
        y = get_activation(self.activation)(self.intermediate_dense(as_rows(y)))  # (B·S, I)
        y = self.dropout(y, training=training) if self.activation_dropout else y
        y = ops.reshape(self.output_dense(y), ops.shape(x))  # (B, S, H)
        x = x + self.dropout(y, training=training)
        return self.output_layer_norm(x) if self.norm == "post" else x

    def attention_scores(self, inputs: Tensor, padding_mask: Tensor) -> Tensor:
        """The attention probabilities, (B, heads, T, T), that `call` uses outside of training."""
        if self.norm == "pre":
            inputs = self.attention_layer_norm(inputs)  # (B, T, H)
        return self.attention.scores(inputs, padding_mask)

    def compute_output_shape(
        self,
        inputs_shape: Shape,
        padding_mask_shape: Shape | None = None,
        queries_shape: Shape | None = None,
        cache_shape: tuple[Shape, Shape] | None = None,
    ) -> Shape | tuple[Shape, tuple[Shape, Shape]]:
        """See `SelfAttention.compute_output_shape`."""
        return self.attention.compute_output_shape(inputs_shape, padding_mask_shape, queries_shape, cache_shape)
