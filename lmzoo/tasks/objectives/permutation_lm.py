"""The layer with the query stream of permutation language modeling.

Letters in shapes: B sequences, T tokens, M predicted tokens, H width of the hidden states, V vocabulary size.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.families.backbone import Backbone
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.initializers import TruncatedNormal


@keras.saving.register_keras_serializable(package="lmzoo")
class QueryStream(ConfiguredLayer):
    """A layer that runs a backbone's query stream, with one learned vector as initial query (Yang et al., 2019).

    The query stream is not an output of the backbone, since Keras requires a layer in a graph to return the same number
    of outputs in every call.

    Args:
        backbone: a backbone with `query_stream`, such as `lmzoo.models.XlnetBackbone`.

    Call arguments: `inputs`, the backbone's inputs; `order` int (B, T), the factorization order of the tokens; and
    `positions` int (B, M), the positions to predict. Returns the last hidden states of the query stream, float
    (B, M, H). If `vectors` and `bias` are passed, it returns the backbone's `token_logits` for them instead, float32
    (B, M, V).
    """

    def __init__(self, backbone: Backbone, **kwargs: Any) -> None:
        super().__init__(**{"dtype": backbone.dtype_policy, **kwargs})
        self.backbone = backbone
        config = backbone.config
        initializer = TruncatedNormal(stddev=config.initializer_range)
        self.vector = self.add_weight(shape=(1, 1, config.hidden_dim), initializer=initializer, name="vector")
        self.built = True

    def call(
        self,
        inputs: Features,
        order: Tensor,
        positions: Tensor,
        vectors: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Compute the hidden states at `positions`, or the logits of `vectors` if these are passed."""
        if vectors is not None:
            # Keras would duplicate the token embeddings if they were used both in this layer and outside of it.
            return self.backbone.token_logits(vectors, bias)
        initial_vector = ops.cast(self.vector, self.compute_dtype)
        queries = ops.broadcast_to(initial_vector, (*ops.shape(positions), initial_vector.shape[-1]))  # (B, M, H)
        return self.backbone.query_stream(inputs, order, queries, positions, training=training)[1][-1]

    def compute_output_spec(
        self,
        inputs: Features,
        order: Tensor,
        positions: Tensor,
        vectors: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
    ) -> keras.KerasTensor:
        """Return the spec of the output of `call`."""
        if vectors is not None:
            return self.backbone.compute_output_spec(inputs, vectors=vectors, bias=bias)
        return keras.KerasTensor((*positions.shape, self.backbone.config.hidden_dim), self.compute_dtype)
