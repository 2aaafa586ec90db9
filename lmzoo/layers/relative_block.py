"""XLNet's Transformer block: relative attention in one stream or two."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor
from lmzoo.layers.relative_attention import RelativeAttention
from lmzoo.layers.remat import recompute_in_backward
from lmzoo.layers.transformer_block import TransformerBlock


@keras.saving.register_keras_serializable(package="lmzoo")
class RelativeBlock(TransformerBlock):
    """Transformer block with relative attention (Yang et al., 2019).

    It is a `TransformerBlock` with `norm="post"`, with `RelativeAttention` as its attention layer, and with additional
    dropout after the activation. The call arguments and the shapes of results are the same as for `RelativeAttention`.
    With `queries`, both streams pass through the same weights.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"hidden_dropout": True, **options})

    def make_attention(self, dropout: float) -> RelativeAttention:
        """Return a new attention layer for the block."""
        sizes = self.num_heads, self.hidden_dim
        return RelativeAttention(*sizes, dropout, self.initializer_range, dtype=self.dtype_policy, name="attention")

    def call(  # type: ignore[override]
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
        """Return the hidden states of the inputs and, with `queries`, of the queries."""
        streams = (inputs,) if queries is None else (inputs, queries)

        def apply(inputs: Tensor, queries: Tensor | None = None) -> Tensor:
            attention_output = self.attention(
                inputs, encodings, mask, apart, queries, positions, query_mask, query_apart, memory, training=training
            )
            # The feed-forward network sees both streams as one sequence.
            stream = inputs if queries is None else ops.concatenate([inputs, queries], axis=1)  # (B, T + M, H)
            attention_output = attention_output if queries is None else ops.concatenate(attention_output, axis=1)
            return self.add_feed_forward(stream, attention_output, training)

        x = (
            recompute_in_backward(self, apply, *streams) if self.remat and training else apply(*streams)
        )  # (B, T + M, H)
        if queries is None:
            return x
        length = ops.shape(inputs)[1]
        # Not `x[:, :length]`, whose gradient takes eight times as long on TensorFlow.
        return ops.slice(x, (0, 0, 0), ops.shape(inputs)), ops.slice(x, (0, length, 0), ops.shape(queries))

    def attention_scores(  # type: ignore[override]
        self, inputs: Tensor, encodings: Tensor, mask: Tensor, apart: Tensor
    ) -> Tensor:
        """Return the inputs' attention probabilities without dropout, float (B, heads, T, T)."""
        return self.attention.scores(inputs, encodings, mask, apart)
