"""Losses of models whose outputs are logits, or log-probabilities."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


def loss_of_logits(loss: Any) -> Any:
    """What a model of logits is compiled with for `loss`: if that is the name of a cross-entropy, the one of logits.

    Args:
        loss: as `keras.Model.compile` takes it; a dict of them, too.

    Raises:
        ValueError: for a cross-entropy of probabilities, with which nothing would be learnt.
    """
    if isinstance(loss, dict):
        return {name: loss_of_logits(part) for name, part in loss.items()}
    losses = keras.losses
    kinds = losses.SparseCategoricalCrossentropy, losses.CategoricalCrossentropy, losses.BinaryCrossentropy
    names = {"sparse_categorical_crossentropy": 0, "categorical_crossentropy": 1, "binary_crossentropy": 2}
    if isinstance(loss, str) and loss in names:
        return kinds[names[loss]](from_logits=True)
    if isinstance(loss, kinds) and not loss.from_logits:
        raise ValueError(
            f"The model's outputs are logits: pass {type(loss).__name__}(from_logits=True), or leave `loss` out."
        )
    return loss


@keras.saving.register_keras_serializable(package="lmzoo")
class UnrolledLoss(keras.losses.Loss):
    """Of a row of words the sum over its steps of the negative log-likelihoods, of two directions their mean.

    That is the loss of one word times the number of steps, whose gradient ELMo was trained with (bilm-tf).

    Args:
        reduction: as in `keras.losses.Loss`.
        name: str.

    Call arguments: `y_true` (B, T, 2), not looked at; `y_pred` float (B, T, 2), log-probabilities of the words, 0 where
    there is no word.
    """

    def __init__(self, reduction: str = "sum_over_batch_size", name: str = "unrolled_loss") -> None:
        super().__init__(name=name, reduction=reduction)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of each row: float32 (B,)."""
        return -ops.sum(ops.mean(y_pred, axis=-1), axis=-1)
