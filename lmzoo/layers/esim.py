"""The enhanced sequential inference model on top of a backbone, for pairs of texts.

Letters in shape comments: B pairs, T tokens of both texts, H width of a backbone's vector, W characters per word, U
width of each direction of the LSTMs.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.adapted import Dense
from lmzoo.layers.attention import masked_softmax
from lmzoo.layers.bilstm import BiLSTMEncoder
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.dropout import Dropout
from lmzoo.layers.encoder_registry import register_encoder
from lmzoo.layers.pooling import MaxPooler, MeanPooler
from lmzoo.layers.rows import as_rows


def align_texts(states: Tensor, is_first: Tensor, is_second: Tensor) -> Tensor:
    """Return each token's soft alignment: a weighted mean of the vectors of the other text's tokens.

    The weights are a softmax over the dot products of the token's vector with the vectors of the other text (Chen et
    al., 2017, eqs. 11 to 13). Tokens of neither text get zeros, as do the tokens of a text if the other text is empty.

    Args:
        states: float (B, T, D), vectors of width D of the tokens of both texts.
        is_first: bool (B, T), True at the tokens of the first text.
        is_second: bool (B, T), True at the tokens of the second text.

    Returns:
        The means, float (B, T, D).
    """
    scores = ops.matmul(states, ops.transpose(states, (0, 2, 1)))  # (B, T, T)
    first_to_second = ops.expand_dims(is_first, 2) & ops.expand_dims(is_second, 1)  # (B, T, T)
    second_to_first = ops.expand_dims(is_second, 2) & ops.expand_dims(is_first, 1)  # (B, T, T)
    weights = masked_softmax(scores, first_to_second | second_to_first)  # (B, T, T)
    return ops.matmul(ops.cast(weights, states.dtype), states)


@register_encoder("esim", returns="pairs")
@keras.saving.register_keras_serializable(package="lmzoo")
class ESIMEncoder(ConfiguredLayer):
    """Encoder that returns a vector per pair of texts: the enhanced sequential inference model (Chen et al., 2017).

    https://arxiv.org/abs/1609.06038

    A bidirectional LSTM reads each text. Each token is aligned with the other text (`align_texts`), and its vector a,
    the aligned vector ã, a - ã and the elementwise product a ⊙ ã are concatenated and projected. A second bidirectional
    LSTM reads the result. The means and maxima of its outputs over each text, 8U numbers in all, go through a dense
    layer with tanh.

    The input of the first LSTM is the backbone's vectors with the task's own word vectors, as in `BiLSTMEncoder`.

    Args:
        units: int, width U of each direction of the LSTMs, and of the result.
        embedding_dim: int, width of the task's own word vectors.
        buckets: int, number of the task's own word vectors.
        dropout: float, dropout rate in training, on the input and output of the LSTMs and before the last dense layer.

    Call arguments: `sequence` float (B, T, H), the backbone's vectors; `ids` int32, token ids (B, T) or ELMo's
    character ids (B, T, W); `padding_mask` (B, T); and `segment_ids` int (B, T), 0 for the first text and 1 for the
    second. Tokens with other segment ids are ignored. Returns float (B, U).
    """

    def __init__(
        self, units: int, embedding_dim: int = 100, buckets: int = 20_011, dropout: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.embedding_dim = embedding_dim
        self.buckets = buckets
        policy = self.dtype_policy
        self.dropout = Dropout(dropout, dtype=policy, name="dropout")
        self.encoding = BiLSTMEncoder(units, embedding_dim, buckets, dropout, dtype=policy, name="encoding")
        self.projection = Dense(units, activation="relu", dtype=policy, name="projection")
        self.composition = BiLSTMEncoder(units, 0, dropout=dropout, dtype=policy, name="composition")
        self.dense = Dense(units, activation="tanh", dtype=policy, name="dense")
        self.mean_pooler = MeanPooler(dtype=policy, name="mean_pooler")
        self.max_pooler = MaxPooler(dtype=policy, name="max_pooler")

    def build(
        self,
        sequence_shape: Shape,
        ids_shape: Shape,
        padding_mask_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        """Create the weights of the LSTMs and of the dense layers."""
        self.encoding.build(sequence_shape, ids_shape)
        self.projection.build((None, 8 * self.units))
        self.composition.build((*sequence_shape[:-1], self.units))
        self.dense.build((None, 8 * self.units))

    def call(
        self, sequence: Tensor, ids: Tensor, padding_mask: Tensor, segment_ids: Tensor, training: bool = False
    ) -> Tensor:
        """Return the vector of each pair."""
        is_token = ops.cast(padding_mask, "bool")
        masks = [is_token & ops.equal(segment_ids, segment) for segment in (0, 1)]  # (B, T) each
        encoded_vectors = self.encoding(sequence, ids, is_token, segment_ids, training=training)  # (B, T, 2U)
        aligned_vectors = align_texts(encoded_vectors, *masks)  # (B, T, 2U)
        enhanced_vectors = ops.concatenate(
            [encoded_vectors, aligned_vectors, encoded_vectors - aligned_vectors, encoded_vectors * aligned_vectors],
            axis=-1,
        )  # (B, T, 8U)
        projected_vectors = self.projection(as_rows(enhanced_vectors))  # (B·T, U)
        projected_vectors = ops.reshape(projected_vectors, (*ops.shape(encoded_vectors)[:2], self.units))  # (B, T, U)
        composed_vectors = self.composition(
            projected_vectors, None, is_token, segment_ids, training=training
        )  # (B, T, 2U)
        pooled_vectors = [
            pooler(composed_vectors, mask) for mask in masks for pooler in (self.mean_pooler, self.max_pooler)
        ]
        return self.dense(self.dropout(ops.concatenate(pooled_vectors, axis=-1), training=training))  # (B, U)

    def compute_output_shape(
        self, sequence_shape: Shape, ids_shape: Shape, padding_mask_shape: Shape, segment_ids_shape: Shape
    ) -> Shape:
        """Return the output shape (B, U)."""
        return (sequence_shape[0], self.units)
