"""Pooling: the first of a sequence's vectors, chosen ones, their mean or their maximum."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.adapted import normal_dense
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.rows import at_positions


@keras.saving.register_keras_serializable(package="lmzoo")
class FirstTokenPooler(ConfiguredLayer):
    """tanh(W·h₀ + b) for the first position's vector h₀: BERT's pooler (Devlin et al., 2019).

    Args:
        hidden_dim: int, H.
        initializer_range: float, standard deviation of the truncated normal initializer.

    Call argument: `sequence` float (B, T, H). Returns float (B, H).
    """

    def __init__(self, hidden_dim: int, initializer_range: float = 0.02, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.initializer_range = initializer_range
        arguments = {"activation": "tanh", "dtype": self.dtype_policy, "name": "dense"}
        self.dense = normal_dense(hidden_dim, initializer_range, **arguments)

    def build(self, input_shape: Shape) -> None:
        """Create the projection."""
        self.dense.build((input_shape[0], input_shape[-1]))

    def call(self, sequence: Tensor) -> Tensor:
        """Pool `sequence`."""
        return self.dense(sequence[:, 0, :])

    def compute_output_shape(self, sequence_shape: Shape) -> Shape:
        """Return a vector for each sequence."""
        return (sequence_shape[0], self.hidden_dim)


@keras.saving.register_keras_serializable(package="lmzoo")
class MeanPooler(ConfiguredLayer):
    """The mean of the real tokens' vectors; zeros for a sequence without any.

    Call arguments: `sequence` float (B, T, H), `padding_mask` int or bool (B, T). Returns float (B, H).
    """

    def call(self, sequence: Tensor, padding_mask: Tensor) -> Tensor:
        """Pool `sequence`."""
        weights = ops.expand_dims(ops.cast(padding_mask, sequence.dtype), -1)  # (B, T, 1)
        total = ops.sum(sequence * weights, axis=1)  # (B, H)
        return total / ops.maximum(ops.sum(weights, axis=1), 1)

    def compute_output_shape(self, sequence_shape: Shape, padding_mask_shape: Shape | None = None) -> Shape:
        """Return a vector for each sequence."""
        return (sequence_shape[0], sequence_shape[-1])


@keras.saving.register_keras_serializable(package="lmzoo")
class SquareRootMeanPooler(MeanPooler):
    """The sum of the real tokens' vectors divided by the square root of their number; zeros for a sequence without any.

    Call arguments: `sequence` float (B, T, H), `padding_mask` int or bool (B, T). Returns float (B, H).
    """

    def call(self, sequence: Tensor, padding_mask: Tensor) -> Tensor:
        """Pool `sequence`."""
        count = ops.sum(ops.cast(padding_mask, "float32"), axis=1, keepdims=True)  # (B, 1)
        return super().call(sequence, padding_mask) * ops.cast(ops.sqrt(count), sequence.dtype)


@keras.saving.register_keras_serializable(package="lmzoo")
class WeightedMeanPooler(MeanPooler):
    """The mean of the real tokens' vectors, each weighted by its place, counted from 1 (Muennighoff, 2022).

    A sequence without any has zeros.

    Call arguments: `sequence` float (B, T, H), `padding_mask` int or bool (B, T). Returns float (B, H).
    """

    def call(self, sequence: Tensor, padding_mask: Tensor) -> Tensor:
        """Pool `sequence`."""
        real = ops.cast(padding_mask, "float32")  # (B, T); a half precision has no 257
        places = ops.expand_dims(ops.cumsum(real, axis=1) * real, -1)  # (B, T, 1)
        total = ops.sum(ops.cast(sequence, "float32") * places, axis=1)  # (B, H)
        return ops.cast(total / ops.maximum(ops.sum(places, axis=1), 1), sequence.dtype)


@keras.saving.register_keras_serializable(package="lmzoo")
class LastTokenPooler(MeanPooler):
    """The vector of the last real token; zeros for a sequence without any.

    Call arguments: `sequence` float (B, T, H), `padding_mask` int or bool (B, T). Returns float (B, H).
    """

    def call(self, sequence: Tensor, padding_mask: Tensor) -> Tensor:
        """Pool `sequence`."""
        real = ops.cast(padding_mask, "int32")  # (B, T)
        last = ops.equal(ops.cumsum(real, axis=1), ops.sum(real, axis=1, keepdims=True))
        return super().call(sequence, ops.cast(last, "int32") * real)


@keras.saving.register_keras_serializable(package="lmzoo")
class MaxPooler(MeanPooler):
    """The maximum of each feature over the real tokens; zeros for a sequence without any.

    Call arguments: `sequence` float (B, T, H), `padding_mask` int or bool (B, T). Returns float (B, H).
    """

    def call(self, sequence: Tensor, padding_mask: Tensor) -> Tensor:
        """Pool `sequence`."""
        real = ops.expand_dims(ops.cast(padding_mask, "bool"), -1)  # (B, T, 1)
        lowest = ops.full_like(sequence, -np.inf)
        # With an initial value Keras takes the maximum of a batch without sequences, too.
        highest = ops.max(ops.where(real, sequence, lowest), axis=1, initial=-np.inf)  # (B, H)
        return ops.where(ops.any(real, axis=1), highest, ops.zeros_like(highest))


@keras.saving.register_keras_serializable(package="lmzoo")
class GatherPositions(ConfiguredLayer):
    """The vectors at chosen positions.

    Call arguments: `sequence` float (B, T, H), `positions` int (B, M). Returns float (B, M, H).
    """

    def call(self, sequence: Tensor, positions: Tensor) -> Tensor:
        """Gather them."""
        return at_positions(sequence, positions)

    def compute_output_shape(self, sequence_shape: Shape, positions_shape: Shape) -> Shape:
        """Return a vector for each position."""
        return (*positions_shape, sequence_shape[-1])
