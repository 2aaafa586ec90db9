"""Losses of models whose outputs are logits."""

from __future__ import annotations

from typing import Any

import keras


def loss_of_logits(loss: Any) -> Any:
    """The loss to compile a model with whose outputs are logits.

    Args:
        loss: as `keras.Model.compile` takes it, also a dict of losses.

    Returns:
        For the name of a cross-entropy, the one that takes logits; any other loss as it is.

    Raises:
        ValueError: for a cross-entropy of probabilities: nothing would be learnt with it.
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
