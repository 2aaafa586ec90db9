"""Loss and accuracy of extractive question answering, from logits of answer start and end positions."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor


@keras.saving.register_keras_serializable(package="lmzoo")
class SpanCrossentropy(keras.losses.Loss):
    """Mean cross-entropy of an answer's start and end, the positions of its first and last token.

    Call arguments: `y_true` int (B, 2), the two positions; `y_pred` float (B, T, 2), their logits.
    """

    def __init__(self, name: str = "span_crossentropy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the loss of each sequence, float (B,)."""
        logits = ops.transpose(y_pred, (0, 2, 1))  # (B, 2, T)
        losses = ops.sparse_categorical_crossentropy(ops.cast(y_true, "int32"), logits, from_logits=True)  # (B, 2)
        return ops.mean(losses, axis=-1)


@keras.saving.register_keras_serializable(package="lmzoo")
class SpanAccuracy(keras.metrics.Mean):
    """Fraction of sequences whose answer is predicted exactly: both its first and its last token.

    `update_state` takes positions int (B, 2), logits float (B, T, 2) and weights (B,).
    """

    def __init__(self, name: str = "span_accuracy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch of positions (B, 2), logits (B, T, 2) and weights (B,)."""
        predicted_positions = ops.cast(ops.argmax(y_pred, axis=1), "int32")  # (B, 2)
        is_correct = ops.all(ops.equal(predicted_positions, ops.cast(y_true, "int32")), axis=-1)  # (B,)
        super().update_state(ops.cast(is_correct, self.dtype), sample_weight)
