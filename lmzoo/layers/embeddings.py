"""Input layer of Transformers: the sum of token, position and segment embeddings."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.adapted import Embedding, ReversibleEmbedding
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.dropout import Dropout, LockedDropout, WordDropout
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.layers.normalization import LayerNorm


def make_sinusoids(count: int, width: int) -> np.ndarray:
    """Return sinusoidal position embeddings (Vaswani et al., 2017, section 3.5), float64 (count, width).

    All sines come before all cosines, as in Marian.
    """
    frequencies = 10000.0 ** (-2 * np.arange((width + 1) // 2) / width)  # (width / 2,)
    angles = np.arange(count)[:, None] * frequencies  # (count, width / 2)
    return np.concatenate([np.sin(angles), np.cos(angles[:, : width // 2])], axis=1)


def check_length(length: int | Tensor, max_length: int) -> None:
    """Check that sequences are not longer than a model allows, if their length is known.

    Raises:
        ValueError: If `length` is greater than `max_length`.
    """
    # JAX would return NaN for positions beyond the table. Torch's symbolic shapes are arbitrary integers.
    is_known = isinstance(length, int) and keras.backend.backend() != "torch"
    if is_known and length > max_length:
        raise ValueError(f"The sequences are {length} tokens long, but the model has positions for {max_length}.")


@keras.saving.register_keras_serializable(package="lmzoo")
class TransformerEmbedding(ConfiguredLayer):
    """Transformer input layer: LayerNorm(token + position + segment), then dropout (Devlin et al., 2019, figure 2).

    Args:
        vocabulary_size: int, number of rows of the token table.
        hidden_dim: int, width H of the embeddings.
        max_sequence_length: int, maximum length of a sequence in tokens; None for a model without positions, which has
            no such limit.
        num_segments: int, number of rows of the segment table. With 1, every token gets that row; with 0, there is no
            table.
        dropout: float, dropout rate after LayerNorm, in training.
        layer_norm_epsilon: float, added to the variance in LayerNorm.
        initializer_range: float, standard deviation of the truncated normal initializer.
        first_position: int, row of the position table for the first token. If it is not 0, padding gets the
            previous row and only real tokens are counted (RoBERTa: 2, since fairseq numbers positions from its padding
            id).
        normalize: bool, whether LayerNorm is applied to the sum (not in GPT: Radford et al., 2018).
        sinusoidal: bool, whether the position table is fixed (see `make_sinusoids`) instead of learned.
        scale: float, factor by which token embeddings are multiplied.
        position_table: bool, whether there is a learned position table (not in models with rotary positions).
        use_bias: bool, whether LayerNorm has a bias.
        word_dropout: float, fraction of the rows of the token table that training drops; see `WordDropout`.
        locked_dropout: bool, whether all tokens of a sequence share the mask of `dropout`; see `LockedDropout`.

    Call arguments: `token_ids` int (B, T); `segment_ids` int (B, T) if there are several segments; `padding_mask` int
    (B, T) if `first_position` is not 0; optionally `index`, an int or int tensor (), the position of the first token
    in sequences that continue earlier calls and have no padding; optionally `offsets` float (B, T, H), added to the
    token embeddings. Returns float (B, T, H).
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        max_sequence_length: int | None,
        num_segments: int = 2,
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        first_position: int = 0,
        normalize: bool = True,
        sinusoidal: bool = False,
        scale: float = 1.0,
        position_table: bool = True,
        use_bias: bool = True,
        word_dropout: float = 0.0,
        locked_dropout: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.initializer_range = initializer_range
        self.first_position = first_position
        self.layer_norm_epsilon = layer_norm_epsilon
        self.normalize = normalize
        self.sinusoidal = sinusoidal
        self.scale = scale
        self.position_table = position_table
        self.use_bias = use_bias
        self.locked_dropout = locked_dropout
        # Reversible, since language-model heads project back through the same table.
        self.token_embedding = self._make_table(ReversibleEmbedding, vocabulary_size, "token_embedding")
        self.position_embedding = None
        if max_sequence_length and position_table and not sinusoidal:
            num_rows = max_sequence_length + first_position
            self.position_embedding = self._make_table(Embedding, num_rows, "position_embedding")
        self.segment_embedding = (
            self._make_table(Embedding, num_segments, "segment_embedding") if num_segments else None
        )
        self.layer_norm = None
        if normalize:
            norm = LayerNorm(epsilon=layer_norm_epsilon, center=use_bias, dtype=self.dtype_policy, name="layer_norm")
            self.layer_norm = norm
        policy = self.dtype_policy
        self.dropout = (LockedDropout if locked_dropout else Dropout)(dropout, dtype=policy, name="dropout")
        self.word_dropout = WordDropout(word_dropout, vocabulary_size, dtype=policy, name="word_dropout")

    def _make_table(
        self, table_class: type[keras.layers.Embedding], num_rows: int, name: str
    ) -> keras.layers.Embedding:
        """Return an embedding layer of class `table_class` with `num_rows` vectors."""
        initializer = TruncatedNormal(stddev=self.initializer_range)
        return table_class(
            num_rows, self.hidden_dim, embeddings_initializer=initializer, dtype=self.dtype_policy, name=name
        )

    def build(
        self,
        token_ids_shape: Shape,
        segment_ids_shape: Shape | None = None,
        padding_mask_shape: Shape | None = None,
        offsets_shape: Shape | None = None,
    ) -> None:
        """Create the embedding tables and the weights of LayerNorm."""
        for table in (self.token_embedding, self.position_embedding, self.segment_embedding):
            if table is not None:
                table.build(token_ids_shape)
        if self.layer_norm is not None:
            self.layer_norm.build((*token_ids_shape, self.hidden_dim))

    def call(
        self,
        token_ids: Tensor,
        segment_ids: Tensor | None = None,
        padding_mask: Tensor | None = None,
        index: int | Tensor | None = None,
        offsets: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Return the embedding of each token, float (B, T, H).

        Raises:
            ValueError: If sequences are longer than `max_sequence_length`. (In TensorFlow graphs of unknown length and
                on torch, the backend raises its own error, and only for models with a position table.)
        """
        length = ops.shape(token_ids)[1]
        if self.max_sequence_length:
            check_length(length, self.max_sequence_length)
        x = self.word_dropout(self.token_embedding(token_ids), token_ids, training=training)  # (B, T, H)
        if offsets is not None:
            x = x + offsets
        if self.scale != 1:
            x = x * ops.cast(self.scale, x.dtype)
        if self.sinusoidal and self.max_sequence_length:
            table = ops.cast(make_sinusoids(self.max_sequence_length, self.hidden_dim).astype("float32"), x.dtype)
            x = x + ops.take(table, self._compute_positions(length, padding_mask, index), axis=0)  # + (T, H)
        if self.position_embedding is not None:
            x = x + self.position_embedding(
                self._compute_positions(length, padding_mask, index)
            )  # + (T, H) or (B, T, H)
        if self.segment_embedding is not None:
            segments = ops.zeros((1,), "int32") if self.num_segments == 1 else segment_ids
            x = x + self.segment_embedding(segments)  # + (1, H) or (B, T, H)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return self.dropout(x, training=training)

    def _compute_positions(
        self, length: int | Tensor, padding_mask: Tensor | None, index: int | Tensor | None
    ) -> Tensor:
        """Return each token's row in the position table, int (T,) or, if padding is not counted, (B, T)."""
        if index is not None:
            return ops.arange(length, dtype="int32") + index + self.first_position  # (T,)
        if not self.first_position:
            return ops.arange(length, dtype="int32")  # (T,)
        mask = ops.cast(padding_mask, "int32")  # (B, T)
        return ops.cumsum(mask, axis=1) * mask + self.first_position - 1

    def compute_output_shape(self, token_ids_shape: Shape) -> Shape:
        """Return the output shape (B, T, H)."""
        return (*token_ids_shape, self.hidden_dim)
