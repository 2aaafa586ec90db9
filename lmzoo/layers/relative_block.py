"""The Transformer block with relative attention, in one stream or two."""

from __future__ import annotations

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor
from lmzoo.layers.relative_attention import RelativeAttention
from lmzoo.layers.remat import recomputed
from lmzoo.layers.transformer_block import TransformerBlock


@keras.saving.register_keras_serializable(package="lmzoo")
class RelativeBlock(TransformerBlock):
    """Relative attention and a feed-forward network, each with a residual sum and LayerNorm (Yang et al., 2019).

    It is a `TransformerBlock` with `norm="post"`, another attention, and dropout after the activation, too. The call
    arguments and results are those of `RelativeAttention`: with `queries` both streams pass through the same weights.
    """

    activation_dropout = True

    def make_attention(self, dropout: float) -> RelativeAttention:
        """Return the attention layer."""
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
        """Apply the block."""
        streams = (inputs,) if queries is None else (inputs, queries)

        def apply(inputs: Tensor, queries: Tensor | None = None) -> Tensor:
            found = self.attention(
                inputs, encodings, mask, apart, queries, positions, query_mask, query_apart, memory, training=training
            )
            # The feed-forward network sees both streams as one sequence.
            stream = inputs if queries is None else ops.concatenate([inputs, queries], axis=1)  # (B, T + M, H)
            found = found if queries is None else ops.concatenate(found, axis=1)
            return self.add_feed_forward(stream, found, training)

        x = recomputed(self, apply, *streams) if self.remat and training else apply(*streams)  # (B, T + M, H)
        if queries is None:
            return x
        length = ops.shape(inputs)[1]
        # Not `x[:, :length]`, whose gradient takes eight times as long on TensorFlow.
        return ops.slice(x, (0, 0, 0), ops.shape(inputs)), ops.slice(x, (0, length, 0), ops.shape(queries))

    def attention_scores(  # type: ignore[override]
        self, inputs: Tensor, encodings: Tensor, mask: Tensor, apart: Tensor
    ) -> Tensor:
        """Return the attention probabilities of the inputs, (B, heads, T, T), that `call` uses outside of training."""
        return self.attention.scores(inputs, encodings, mask, apart)
