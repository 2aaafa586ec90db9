"""The post-LN Transformer block."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.layers.activations import get_activation
from lmzoo.layers.attention import SelfAttention
from lmzoo.layers.dropout import Dropout
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.layers.normalization import LayerNorm
from lmzoo.layers.remat import recomputed
from lmzoo.layers.rows import as_rows


@keras.saving.register_keras_serializable(package="lmzoo")
class TransformerBlock(keras.layers.Layer):
    """Self-attention and a two-layer feed-forward network, each followed by a residual sum and LayerNorm.

    `a = LN(x + dropout(attention(x)))`, then `LN(a + dropout(W2·act(W1·a)))`: Vaswani et al., 2017, section 3.1.

    Args:
        num_heads: int.
        hidden_dim: int, H.
        intermediate_dim: int, width of the feed-forward network's hidden layer.
        activation: str, see `lmzoo.layers.get_activation`.
        dropout: float, rate for both residual branches and for the attention probabilities.
        layer_norm_epsilon: float.
        initializer_range: float, standard deviation of the truncated normal initialiser.

    Call arguments: `inputs` float (B, T, H), `padding_mask` bool (B, T), optionally `queries` float (B, S, H), the
    vectors of `inputs` whose results are wanted: the last block of a model need not compute the others. Returns float
    (B, T, H), or (B, S, H) with `queries`.

    With `block.remat = True` training keeps nothing between a block's inputs and its outputs, and computes it again in
    the backward pass: see `lmzoo.models.Backbone`.
    """

    remat = False

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        activation: str = "gelu",
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        policy = self.dtype_policy

        def dense(units: int, name: str) -> keras.layers.Dense:
            initializer = TruncatedNormal(stddev=initializer_range)
            return keras.layers.Dense(units, kernel_initializer=initializer, dtype=policy, name=name)

        def layer_norm(name: str) -> LayerNorm:
            return LayerNorm(epsilon=layer_norm_epsilon, dtype=policy, name=name)

        self.attention = SelfAttention(
            num_heads, hidden_dim, dropout, initializer_range, dtype=policy, name="attention"
        )
        self.attention_layer_norm = layer_norm("attention_layer_norm")
        self.intermediate_dense = dense(intermediate_dim, "intermediate_dense")
        self.output_dense = dense(hidden_dim, "output_dense")
        self.output_layer_norm = layer_norm("output_layer_norm")
        self.dropout = Dropout(dropout, dtype=policy, name="dropout")

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the sublayers' weights."""
        for layer in (self.attention, self.attention_layer_norm, self.intermediate_dense, self.output_layer_norm):
            layer.build(input_shape)
        self.output_dense.build((*input_shape[:-1], self.intermediate_dim))
        self.built = True

    def call(self, inputs: Any, padding_mask: Any, queries: Any = None, training: bool = False) -> Any:
        """Applies the block."""
        vectors = (inputs,) if queries is None else (inputs, queries)

        def apply(inputs: Any, queries: Any = None) -> Any:
            return self._apply(inputs, padding_mask, queries, training)

        return recomputed(self, apply, *vectors) if self.remat and training else apply(*vectors)

    def _apply(self, inputs: Any, padding_mask: Any, queries: Any, training: bool) -> Any:
        x = self.attention(inputs, padding_mask, queries, training=training)  # (B, S, H)
        x = self.attention_layer_norm((inputs if queries is None else queries) + self.dropout(x, training=training))
        y = get_activation(self.activation)(self.intermediate_dense(as_rows(x)))  # (B·S, I)
        y = ops.reshape(self.output_dense(y), ops.shape(x))  # (B, S, H)
        return self.output_layer_norm(x + self.dropout(y, training=training))

    def compute_output_shape(
        self, inputs_shape: tuple[int | None, ...], padding_mask_shape: Any = None, queries_shape: Any = None
    ) -> tuple[int | None, ...]:
        """The shape of the vectors whose results are wanted."""
        return queries_shape or inputs_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_heads": self.attention.num_heads,
            "hidden_dim": self.attention.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "activation": self.activation,
            "dropout": self.dropout.rate,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.attention.initializer_range,
        }
