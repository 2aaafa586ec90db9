"""Bidirectional LSTM encoder on top of a backbone, for tasks with ELMo."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor, Tensors
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.dropout import Dropout
from lmzoo.layers.encoder_registry import register_encoder
from lmzoo.layers.initializers import Orthogonal
from lmzoo.layers.rows import get_width
from lmzoo.layers.scan import scan

_FNV_PRIME = 0x01000193
_MAX_WORD_LENGTH = 1024  # characters, for graphs in which W is unknown
_PAD_CHARACTER = 261  # ELMo's padding after a word; it must not affect the hash, since its columns may be missing


def hash_words(ids: Tensor, multiplier: int = _FNV_PRIME) -> Tensor:
    """Return a hash of each word, int32 (B, T), given character ids (B, T, W); padding does not affect the hash."""
    # Powers modulo 2^32, one for each column of a word; products wrap around as in C.
    powers = [pow(multiplier, i, 1 << 32) for i in range(1, 1 + (ids.shape[2] or _MAX_WORD_LENGTH))]
    powers = ops.convert_to_tensor(np.array(powers, "uint32").view("int32"))[: ops.shape(ids)[2]]  # (W,)
    # `cumsum` also wraps around in ONNX Runtime, where plain sums of int32 saturate.
    return ops.cumsum((ids - _PAD_CHARACTER) * powers, axis=2)[:, :, -1]


@keras.saving.register_keras_serializable(package="lmzoo")
class HashedWordEmbedding(ConfiguredLayer):
    """Trainable word vectors without a vocabulary: words with equal hashes or ids modulo `buckets` share a vector.

    Args:
        buckets: int, number of vectors.
        embedding_dim: int, width E of a vector.

    Call argument: `ids`, token ids int32 (B, T) or ELMo's character ids int32 (B, T, W). Returns float (B, T, E).
    """

    def __init__(self, buckets: int, embedding_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.buckets = buckets
        self.embedding_dim = embedding_dim

    def build(self, ids_shape: Shape) -> None:
        """Create the embedding table."""
        initializer = keras.initializers.RandomNormal(stddev=0.1)
        shape = (self.buckets, self.embedding_dim)
        self.embeddings = self.add_weight(shape=shape, initializer=initializer, name="embeddings")

    def call(self, ids: Tensor) -> Tensor:
        """Look up the vector of each word by its token id, or by a hash of its character ids."""
        if len(ids.shape) == 3:
            hashes = hash_words(ids)  # (B, T)
            # Only the lowest 31 bits count: in a negative hash, they are the hash plus 2^31. Runtimes have no bitwise
            # ops, and disagree about the sign of a remainder, so `buckets` is added to make it positive.
            ids = hashes % self.buckets + self.buckets + ops.where(hashes < 0, 2**31 % self.buckets, 0)
        return ops.take(ops.cast(self.embeddings, self.compute_dtype), ids % self.buckets, axis=0)

    def compute_output_shape(self, ids_shape: Shape) -> Shape:
        """Return the output shape (B, T, E)."""
        return (*ids_shape[:2], self.embedding_dim)


@keras.saving.register_keras_serializable(package="lmzoo")
class LSTMPair(ConfiguredLayer):
    """Bidirectional LSTM whose states are reset to zero at the start of each segment and do not change at padding.

    The weights are named as in `keras.layers.Bidirectional`. That layer is not used because it makes a copy of the LSTM
    that it wraps: during loading, Keras identifies objects by memory address, and if an address has been reused, it may
    return the copy of a different LSTM.

    Args:
        units: int, width U of each direction.

    Call arguments: `x` float (B, T, D), vectors of any width D; `is_token` bool (B, T), True at real tokens;
    `segment_ids` int (B, T), or None for a single segment. Returns the states after each token, forward and backward
    states concatenated, float (B, T, 2U).
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.tensor_lists = True  # see `scan`
        # `use_cudnn=True` would switch XLA off, even on CPUs.
        self.forward_layer, self.backward_layer = (
            keras.layers.LSTM(
                units,
                recurrent_initializer=Orthogonal(),
                use_cudnn=False,
                dtype=self.dtype_policy,
                name=f"{direction}_lstm",
            )
            for direction in ("forward", "backward")
        )

    def build(
        self, x_shape: Shape, is_token_shape: Shape | None = None, segment_ids_shape: Shape | None = None
    ) -> None:
        """Create the weights of both LSTMs."""
        for layer in (self.forward_layer, self.backward_layer):
            layer.build(x_shape)

    def call(self, x: Tensor, is_token: Tensor, segment_ids: Tensor | None = None, training: bool = False) -> Tensor:
        """Return the states after each token."""
        if x.shape[0] == 0:  # in eager code, Keras' LSTM mistakes matrices without rows for biases
            return ops.zeros((*x.shape[:2], 2 * self.units), self.compute_dtype)
        is_token = ops.cast(is_token, "bool")
        segments = ops.zeros_like(is_token, "int32") if segment_ids is None else ops.cast(segment_ids, "int32")
        is_new_segment = ops.not_equal(segments[:, 1:], segments[:, :-1])  # (B, T - 1)
        initial_state = tuple(ops.zeros((ops.shape(x)[0], self.units), x.dtype) for _ in range(2))
        outputs = []
        for layer, reverse in ((self.forward_layer, False), (self.backward_layer, True)):
            is_first = ops.pad(is_new_segment, ((0, 0), (0, 1) if reverse else (1, 0)))  # (B, T), in reading order
            step_inputs = [ops.transpose(x, (1, 0, 2))]  # (T, B, D)
            step_inputs += [ops.expand_dims(ops.transpose(flags), 2) for flags in (is_token, is_first)]  # (T, B, 1)

            def step(state: Tensors, inputs: Tensors, cell: keras.layers.Layer = layer.cell) -> tuple[Tensors, Tensor]:
                x, is_token, is_first = inputs
                state = tuple(ops.where(is_first, ops.zeros_like(old), old) for old in state)  # (B, U)
                new_state = cell(x, state, training=training)[1]
                state = tuple(
                    ops.where(is_token, new, old) for new, old in zip(new_state, state, strict=True)
                )  # (B, U)
                return state, state[0]

            outputs.append(
                scan(step, initial_state, step_inputs, reverse=reverse, tensor_lists=self.tensor_lists)[1]
            )  # (T, B, U)
        return ops.transpose(ops.concatenate(outputs, axis=-1), (1, 0, 2))  # (B, T, 2U)

    def compute_output_shape(
        self, x_shape: Shape, is_token_shape: Shape | None = None, segment_ids_shape: Shape | None = None
    ) -> Shape:
        """Return the output shape (B, T, 2U)."""
        return (*x_shape[:-1], 2 * self.units)


@register_encoder("bilstm", returns="tokens")
@keras.saving.register_keras_serializable(package="lmzoo")
class BiLSTMEncoder(ConfiguredLayer):
    """Bidirectional LSTM over a backbone's vectors and the task's own word vectors (Peters et al., 2018).

    Args:
        units: int, width U of each direction.
        embedding_dim: int, width E of the task's own word vectors; 0 for none.
        buckets: int, number of the task's own word vectors.
        dropout: float, dropout rate of the LSTMs' input and output in training.

    Call arguments: `sequence` float (B, T, H), the backbone's vectors; `ids` int32, token ids (B, T) or ELMo's
    character ids (B, T, W), or None if `embedding_dim` is 0; `padding_mask` (B, T); `segment_ids` int (B, T), or None.
    Each run of tokens with the same segment id is read as a separate sequence. Returns float (B, T, 2U), zeros at
    padding.
    """

    def __init__(
        self, units: int, embedding_dim: int = 100, buckets: int = 20_011, dropout: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.embedding_dim = embedding_dim
        self.buckets = buckets
        policy = self.dtype_policy
        if embedding_dim:
            self.word_embedding = HashedWordEmbedding(buckets, embedding_dim, dtype=policy, name="word_embedding")
        self.dropout = Dropout(dropout, dtype=policy, name="dropout")
        self.lstm = LSTMPair(units, dtype=policy, name="lstm")

    def build(
        self,
        sequence_shape: Shape,
        ids_shape: Shape | None = None,
        padding_mask_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        """Create the weights of the word embedding and of the LSTMs."""
        if self.embedding_dim and ids_shape is not None:
            self.word_embedding.build(ids_shape)
        self.lstm.build((*sequence_shape[:-1], get_width(sequence_shape) + self.embedding_dim))

    def call(
        self,
        sequence: Tensor,
        ids: Tensor | None,
        padding_mask: Tensor,
        segment_ids: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Return the LSTMs' outputs in both directions, zeros at padding."""
        x = sequence
        if self.embedding_dim:
            x = ops.concatenate([sequence, self.word_embedding(ids)], axis=-1)  # (B, T, H + E)
        mask = ops.cast(padding_mask, "bool")
        x = self.lstm(self.dropout(x, training=training), mask, segment_ids, training=training)  # (B, T, 2U)
        return self.dropout(x * ops.expand_dims(ops.cast(mask, x.dtype), 2), training=training)

    def compute_output_shape(
        self,
        sequence_shape: Shape,
        ids_shape: Shape | None = None,
        padding_mask_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> Shape:
        """Return the output shape (B, T, 2U), which JAX cannot infer while W is unknown."""
        return (*sequence_shape[:-1], 2 * self.units)
