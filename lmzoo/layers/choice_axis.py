"""Layers that flatten the choices of multiple-choice examples into one batch, and split their scores again.

Letters in shape comments: B examples, C choices, T positions.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.configured import ConfiguredLayer

ABSENT = -30_000.0  # below any score of a head, so that its softmax is 0; finite even in float16


@keras.saving.register_keras_serializable(package="lmzoo")
class MergeChoices(ConfiguredLayer):
    """Layer that merges the axes of examples and choices, so that each choice is a sequence of its own.

    Call argument: `x` (B, C, ...). Returns (B·C, ...).
    """

    def call(self, x: Tensor) -> Tensor:
        """Merge the first two axes."""
        return ops.reshape(x, (-1, *ops.shape(x)[2:]))

    def compute_output_spec(self, x: Tensor) -> keras.KerasTensor:
        """Return the output spec, whose shape Keras cannot infer while several axes are unknown."""
        examples, choices, *other_axes = x.shape
        num_sequences = None if examples is None or choices is None else examples * choices
        return keras.KerasTensor((num_sequences, *other_axes), x.dtype)


@keras.saving.register_keras_serializable(package="lmzoo")
class SplitChoices(ConfiguredLayer):
    """Layer that arranges the scores of sequences by example and choice; a choice that is only padding gets -30,000.

    Call arguments: `scores` float (B·C, 1), `padding_mask` int or bool (B, C, T). Returns float32 (B, C).
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": "float32"})

    def call(self, scores: Tensor, padding_mask: Tensor) -> Tensor:
        """Split the first axis into examples and choices."""
        is_present = ops.any(ops.cast(padding_mask, "bool"), axis=-1)  # (B, C)
        return ops.where(is_present, ops.reshape(scores, ops.shape(is_present)), ABSENT)

    def compute_output_shape(self, scores_shape: Shape, padding_mask_shape: Shape) -> Shape:
        """Return the output shape (B, C), which Keras cannot infer while several axes are unknown."""
        return padding_mask_shape[:2]
