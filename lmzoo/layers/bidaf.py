"""Bidirectional attention flow on top of a backbone, for questions about a text.

Letters in shape comments: B sequences, T tokens of a question and its context, H width of a backbone's vector, E width
of a word vector, U width of each direction of the LSTMs.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.adapted import Dense
from lmzoo.layers.attention import masked_softmax
from lmzoo.layers.bilstm import BiLSTMEncoder, HashedWordEmbedding
from lmzoo.layers.character_encoder import Highway
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.dropout import Dropout
from lmzoo.layers.encoder_registry import register_encoder
from lmzoo.layers.mask_values import MASKED
from lmzoo.layers.rows import as_rows, get_width


@keras.saving.register_keras_serializable(package="lmzoo")
class AttentionFlow(ConfiguredLayer):
    """Attention between a context and a question, in both directions (Seo et al., 2017, section 2, layer 4).

    https://arxiv.org/abs/1611.01603

    The similarity of a context token's vector h and a question token's vector u is w · [h; u; h ⊙ u], where ⊙
    multiplies elements. For each context token, ũ is the mean of the question's vectors, weighted by a softmax of the
    token's similarities. For all tokens, h̃ is the mean of the context's vectors, weighted by a softmax of each context
    token's greatest similarity.

    Call arguments: `states` float (B, T, D), vectors of width D of the tokens of both texts; `is_question` and
    `is_context`, bool (B, T), True at the tokens of each text. Returns float (B, T, 4D): [h; ũ; h ⊙ ũ; h ⊙ h̃]
    for the tokens of the context, zeros elsewhere.
    """

    def build(
        self,
        states_shape: Shape,
        is_question_shape: Shape | None = None,
        is_context_shape: Shape | None = None,
    ) -> None:
        """Create the weight vector w of the similarity, in three parts."""
        width = get_width(states_shape)
        initializer = keras.initializers.RandomUniform(-(width**-0.5), width**-0.5)
        self.context_weight, self.question_weight, self.product_weight = (
            self.add_weight(shape=(width, 1), initializer=initializer, name=f"{name}_weight")
            for name in ("context", "question", "product")
        )

    def call(self, states: Tensor, is_question: Tensor, is_context: Tensor) -> Tensor:
        """Return question-aware vectors of the context's tokens, and zeros at other tokens."""
        keys = ops.transpose(states, (0, 2, 1))  # (B, D, T)
        product_weight, question_weight = (ops.transpose(w) for w in (self.product_weight, self.question_weight))
        # (w_p · h + w_u) · u. If w_u · u were a separate term, tf2onnx would transpose it with wrong shapes.
        scores = ops.matmul(states * product_weight + question_weight, keys)  # (B, T, T)
        scores += ops.matmul(states, ops.convert_to_tensor(self.context_weight))
        question_mask = ops.expand_dims(ops.cast(is_question, "bool"), 1)  # (B, 1, T)
        context_mask = ops.cast(is_context, "bool")  # (B, T)
        question_probabilities = masked_softmax(scores, question_mask)  # (B, T, T)
        question_vectors = ops.matmul(ops.cast(question_probabilities, states.dtype), states)  # (B, T, D)
        max_scores = ops.max(
            ops.where(question_mask, ops.cast(scores, "float32"), MASKED), axis=2, initial=MASKED
        )  # (B, T)
        context_probabilities = ops.expand_dims(masked_softmax(max_scores, context_mask), 1)  # (B, 1, T)
        context_vector = ops.matmul(ops.cast(context_probabilities, states.dtype), states)  # (B, 1, D)
        joined_vectors = ops.concatenate(
            [states, question_vectors, states * question_vectors, states * context_vector], axis=-1
        )  # (B, T, 4D)
        return joined_vectors * ops.expand_dims(ops.cast(context_mask, joined_vectors.dtype), 2)

    def compute_output_shape(self, states_shape: Shape, is_question_shape: Shape, is_context_shape: Shape) -> Shape:
        """Return the output shape (B, T, 4D)."""
        return (*states_shape[:-1], 4 * get_width(states_shape))


@register_encoder("bidaf", returns="answers")
@keras.saving.register_keras_serializable(package="lmzoo")
class BiDAFEncoder(ConfiguredLayer):
    """Encoder that computes the logits of answers by bidirectional attention flow (Seo et al., 2017).

    https://arxiv.org/abs/1611.01603

    The backbone's vectors and the task's own word vectors, which take the place of the paper's word and character
    vectors, go through two highway layers. A bidirectional LSTM reads the question and the context separately,
    `AttentionFlow` joins the results, and two more bidirectional LSTMs read the joined vectors of the context. A linear
    layer computes the start logits from the joined vectors and the output of the last LSTM. For the end logits, one
    more bidirectional LSTM reads that output first.

    The paper's model always answers. Here two learned numbers, at the first position, are the logits of "no answer".

    Args:
        units: int, width U of each direction of the LSTMs.
        embedding_dim: int, width E of the task's own word vectors.
        buckets: int, number of the task's own word vectors.
        dropout: float, dropout rate in training, on the input and output of the LSTMs and before the linear layers.

    Call arguments: `sequence` float (B, T, H), the backbone's vectors; `ids` int32, token ids (B, T) or ELMo's
    character ids (B, T, W); `padding_mask` (B, T); and `segment_ids` int (B, T), 0 for the question and 1 for the
    context. Returns float32 logits (B, T, 2) of the answer's start and end, -1e9 outside of the context except for "no
    answer".
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
        self.word_embedding = HashedWordEmbedding(buckets, embedding_dim, dtype=policy, name="word_embedding")
        self.highways = [Highway(dtype=policy, name=f"highway_{i}") for i in range(2)]
        self.contextual, self.modeling_0, self.modeling_1, self.end_modeling = (
            BiLSTMEncoder(units, 0, dropout=dropout, dtype=policy, name=name)
            for name in ("contextual", "modeling_0", "modeling_1", "end_modeling")
        )
        self.attention_flow = AttentionFlow(dtype=policy, name="attention_flow")
        self.start_logits, self.end_logits = (
            Dense(1, use_bias=False, dtype=policy, name=name) for name in ("start_logits", "end_logits")
        )

    def build(
        self,
        sequence_shape: Shape,
        ids_shape: Shape,
        padding_mask_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        """Create the weights of all layers."""
        axes = sequence_shape[:-1]
        width = get_width(sequence_shape) + self.embedding_dim
        self.word_embedding.build(ids_shape)
        for highway in self.highways:
            highway.build((None, width))
        self.contextual.build((*axes, width))
        self.attention_flow.build((*axes, 2 * self.units))
        self.modeling_0.build((*axes, 8 * self.units))
        for layer in (self.modeling_1, self.end_modeling):
            layer.build((*axes, 2 * self.units))
        for dense in (self.start_logits, self.end_logits):
            dense.build((None, 10 * self.units))
        self.restore_created_layers()
        self.no_answer = self.add_weight(shape=(2,), initializer="zeros", autocast=False, name="no_answer")

    def call(
        self, sequence: Tensor, ids: Tensor, padding_mask: Tensor, segment_ids: Tensor, training: bool = False
    ) -> Tensor:
        """Return the logits of the answer's start and end."""
        is_token = ops.cast(padding_mask, "bool")
        is_question = is_token & ops.equal(segment_ids, 0)  # (B, T)
        is_context = is_token & ops.equal(segment_ids, 1)  # (B, T)
        word_vectors = ops.concatenate([sequence, self.word_embedding(ids)], axis=-1)  # (B, T, H + E)
        x = as_rows(word_vectors)
        for highway in self.highways:
            x = highway(x)
        x = ops.reshape(x, ops.shape(word_vectors))  # (B, T, H + E)
        states = self.contextual(x, None, is_token, segment_ids, training=training)  # (B, T, 2U)
        flow = self.attention_flow(states, is_question, is_context)  # (B, T, 8U)
        modeled_states = self.modeling_0(flow, None, is_context, training=training)  # (B, T, 2U)
        modeled_states = self.modeling_1(modeled_states, None, is_context, training=training)  # (B, T, 2U)
        end_modeled_states = self.end_modeling(modeled_states, None, is_context, training=training)  # (B, T, 2U)
        logits = []
        for dense, lstm_outputs in ((self.start_logits, modeled_states), (self.end_logits, end_modeled_states)):
            joined_states = self.dropout(
                ops.concatenate([flow, lstm_outputs], axis=-1), training=training
            )  # (B, T, 10U)
            logits.append(ops.reshape(dense(as_rows(joined_states)), ops.shape(is_token)))  # (B, T)
        scores = ops.cast(ops.stack(logits, axis=-1), "float32")  # (B, T, 2)
        scores = ops.where(ops.expand_dims(is_context, 2), scores, MASKED)
        is_first = ops.arange(ops.shape(is_token)[1])[None, :, None] == 0  # (1, T, 1)
        return ops.where(is_first, ops.cast(self.no_answer, "float32"), scores)

    def compute_output_spec(
        self, sequence: Tensor, ids: Tensor, padding_mask: Tensor, segment_ids: Tensor, training: bool = False
    ) -> keras.KerasTensor:
        """Return the output spec, which is float32 under every dtype policy."""
        return keras.KerasTensor((*sequence.shape[:-1], 2), "float32")
