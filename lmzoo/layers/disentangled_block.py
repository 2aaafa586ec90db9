"""Transformer block with disentangled attention."""

from __future__ import annotations

import keras

from lmzoo.common.tensor_types import Tensor
from lmzoo.layers.disentangled_attention import DisentangledAttention
from lmzoo.layers.remat import recompute_in_backward
from lmzoo.layers.transformer_block import TransformerBlock


@keras.saving.register_keras_serializable(package="lmzoo")
class DisentangledBlock(TransformerBlock):
    """Transformer block with disentangled attention (He et al., 2020).

    It is a `TransformerBlock` with `norm="post"` and `DisentangledAttention` as its attention layer. The call arguments
    and the shapes of results are the same as for `DisentangledAttention`.

    Example: see `DisentangledAttention`.
    """

    def make_attention(self, dropout: float) -> DisentangledAttention:
        """Return a new attention layer for the block."""
        sizes = self.num_heads, self.hidden_dim
        return DisentangledAttention(*sizes, dropout, self.initializer_range, dtype=self.dtype_policy, name="attention")

    def call(  # type: ignore[override]
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        distances: Tensor,
        queries: Tensor | None = None,
        positions: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Return the hidden states at every position, or for `queries`."""
        streams = (inputs, distances) if queries is None else (inputs, distances, queries)

        def apply(inputs: Tensor, distances: Tensor, queries: Tensor | None = None) -> Tensor:
            x = self.attention(inputs, padding_mask, distances, queries, positions, training=training)  # (B, S, H)
            return self.add_feed_forward(inputs if queries is None else queries, x, training)

        return recompute_in_backward(self, apply, *streams) if self.remat and training else apply(*streams)

    def attention_scores(  # type: ignore[override]
        self, inputs: Tensor, padding_mask: Tensor, distances: Tensor
    ) -> Tensor:
        """Return the attention probabilities of `call`, (B, heads, T, T), without dropout."""
        return self.attention.scores(inputs, padding_mask, distances)
