"""Turns the choices of examples into sequences of a batch, and their scores back.

Letters: B examples, C choices, T positions.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.configured import ConfiguredLayer

ABSENT = -30_000.0  # below any score of a head: its softmax is 0. Finite in float16, too.


@keras.saving.register_keras_serializable(package="lmzoo")
class MergeChoices(ConfiguredLayer):
    """A layer that makes each choice of each example a sequence of its own.

    Call argument: `x` (B, C, ...). Returns (B·C, ...).
    """

    def call(self, x: Tensor) -> Tensor:
        """Merge the first two axes."""
        return ops.reshape(x, (-1, *ops.shape(x)[2:]))

    def compute_output_spec(self, x: Tensor) -> keras.KerasTensor:
        """Return the result's shape, which cannot be derived while several axes are unknown, and the dtype of `x`."""
        examples, choices, *rest = x.shape
        return keras.KerasTensor((None if examples is None or choices is None else examples * choices, *rest), x.dtype)


@keras.saving.register_keras_serializable(package="lmzoo")
class SplitChoices(ConfiguredLayer):
    """Scores of sequences, by example and choice; a choice that is all padding gets -30,000.

    Call arguments: `scores` float (B·C, 1), `padding_mask` int or bool (B, C, T). Returns float32 (B, C).
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": "float32"})

    def call(self, scores: Tensor, padding_mask: Tensor) -> Tensor:
        """Split the first axis."""
        there = ops.any(ops.cast(padding_mask, "bool"), axis=-1)  # (B, C)
        return ops.where(there, ops.reshape(scores, ops.shape(there)), ABSENT)

    def compute_output_shape(self, scores_shape: Shape, padding_mask_shape: Shape) -> Shape:
        """Return the result's shape, which cannot be derived while several axes are unknown."""
        return padding_mask_shape[:2]
