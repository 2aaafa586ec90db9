"""Pooling layers, from a sequence's vectors to one vector per sequence or per chosen position.

Letters in shape comments: B sequences, T positions, M chosen positions, H width of a vector.
"""

from __future__ import annotations

from typing import Any

import keras
import ml_dtypes
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.adapted import make_normal_dense
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.rows import gather_positions


@keras.saving.register_keras_serializable(package="lmzoo")
class FirstTokenPooler(ConfiguredLayer):
    """BERT's pooler: tanh(W·h₀ + b) for the first token's vector h₀ (Devlin et al., 2019).

    Args:
        hidden_dim: int, width H of the vectors.
        initializer_range: float, standard deviation of the truncated normal initializer.

    Call argument: `sequence` float (B, T, H). Returns float (B, H).
    """

    def __init__(self, hidden_dim: int, initializer_range: float = 0.02, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.initializer_range = initializer_range
        arguments = {"activation": "tanh", "dtype": self.dtype_policy, "name": "dense"}
        self.dense = make_normal_dense(hidden_dim, initializer_range, **arguments)

    def build(self, input_shape: Shape) -> None:
        """Create the weights of the dense layer."""
        self.dense.build((input_shape[0], input_shape[-1]))

    def call(self, sequence: Tensor) -> Tensor:
        """Return the projected vector of the first token."""
        return self.dense(sequence[:, 0, :])

    def compute_output_shape(self, sequence_shape: Shape) -> Shape:
        """Return the output shape (B, H)."""
        return (sequence_shape[0], self.hidden_dim)


@keras.saving.register_keras_serializable(package="lmzoo")
class MeanPooler(ConfiguredLayer):
    """Mean of the real tokens' vectors; zeros for a sequence without real tokens.

    Call arguments: `sequence` float (B, T, H), `padding_mask` int or bool (B, T). Returns float (B, H).
    """

    def call(self, sequence: Tensor, padding_mask: Tensor) -> Tensor:
        """Return the mean vector of each sequence."""
        dtype = keras.backend.result_type(sequence.dtype, "float32")  # float16 cannot represent 65,505
        weights = ops.expand_dims(ops.cast(padding_mask, dtype), -1)  # (B, T, 1)
        weighted_sum = ops.sum(ops.cast(sequence, dtype) * weights, axis=1)  # (B, H)
        return ops.cast(weighted_sum / ops.maximum(ops.sum(weights, axis=1), 1), sequence.dtype)

    def compute_output_shape(self, sequence_shape: Shape, padding_mask_shape: Shape | None = None) -> Shape:
        """Return the output shape (B, H)."""
        return (sequence_shape[0], sequence_shape[-1])


@keras.saving.register_keras_serializable(package="lmzoo")
class SquareRootMeanPooler(MeanPooler):
    """Sum of the n real tokens' vectors divided by √n; zeros for a sequence without real tokens.

    Call arguments: `sequence` float (B, T, H), `padding_mask` int or bool (B, T). Returns float (B, H).
    """

    def call(self, sequence: Tensor, padding_mask: Tensor) -> Tensor:
        """Return the pooled vector of each sequence."""
        num_tokens = ops.sum(ops.cast(padding_mask, "float32"), axis=1, keepdims=True)  # (B, 1)
        return super().call(sequence, padding_mask) * ops.cast(ops.sqrt(num_tokens), sequence.dtype)


@keras.saving.register_keras_serializable(package="lmzoo")
class WeightedMeanPooler(MeanPooler):
    """Mean of the real tokens' vectors, weighted by position (Muennighoff, 2022).

    Positions count the real tokens from 1. A sequence without real tokens gets zeros.

    Call arguments: `sequence` float (B, T, H), `padding_mask` int or bool (B, T). Returns float (B, H).
    """

    def call(self, sequence: Tensor, padding_mask: Tensor) -> Tensor:
        """Return the weighted mean vector of each sequence."""
        is_real = ops.cast(padding_mask, "float32")  # (B, T); bfloat16 cannot represent 257
        weights = ops.expand_dims(ops.cumsum(is_real, axis=1) * is_real, -1)  # (B, T, 1)
        weighted_sum = ops.sum(ops.cast(sequence, "float32") * weights, axis=1)  # (B, H)
        return ops.cast(weighted_sum / ops.maximum(ops.sum(weights, axis=1), 1), sequence.dtype)


@keras.saving.register_keras_serializable(package="lmzoo")
class LastTokenPooler(MeanPooler):
    """Vector of the last real token; zeros for a sequence without real tokens.

    Call arguments: `sequence` float (B, T, H), `padding_mask` int or bool (B, T). Returns float (B, H).
    """

    def call(self, sequence: Tensor, padding_mask: Tensor) -> Tensor:
        """Return the last real token's vector of each sequence."""
        is_real = ops.cast(padding_mask, "int32")  # (B, T)
        is_last = ops.equal(ops.cumsum(is_real, axis=1), ops.sum(is_real, axis=1, keepdims=True))
        return super().call(sequence, ops.cast(is_last, "int32") * is_real)


@keras.saving.register_keras_serializable(package="lmzoo")
class MaxPooler(MeanPooler):
    """Maximum of each feature over the real tokens; zeros for a sequence without real tokens.

    Call arguments: `sequence` float (B, T, H), `padding_mask` int or bool (B, T). Returns float (B, H).
    """

    def call(self, sequence: Tensor, padding_mask: Tensor) -> Tensor:
        """Return the maximum of each feature over the real tokens of each sequence."""
        is_real = ops.expand_dims(ops.cast(padding_mask, "bool"), -1)  # (B, T, 1)
        # ONNX files multiply by the mask, and infinity times 0 is not a number.
        dtype = keras.backend.standardize_dtype(sequence.dtype)
        lowest = float(ml_dtypes.finfo(dtype).min)  # type: ignore[no-untyped-call]
        # Without an initial value, Keras raises an error for a batch without sequences.
        maxima = ops.max(ops.where(is_real, sequence, lowest), axis=1, initial=lowest)  # (B, H)
        return ops.where(ops.any(is_real, axis=1), maxima, ops.zeros_like(maxima))


@keras.saving.register_keras_serializable(package="lmzoo")
class GatherPositions(ConfiguredLayer):
    """Layer that selects vectors at chosen positions of each sequence.

    Call arguments: `sequence` float (B, T, H), `positions` int (B, M). Returns float (B, M, H).
    """

    def call(self, sequence: Tensor, positions: Tensor) -> Tensor:
        """Return the vectors at `positions`."""
        return gather_positions(sequence, positions)

    def compute_output_shape(self, sequence_shape: Shape, positions_shape: Shape) -> Shape:
        """Return the output shape (B, M, H)."""
        return (*positions_shape, sequence_shape[-1])
