"""Losses of models whose outputs are logits."""

from __future__ import annotations

from typing import Any

import keras


def loss_of_logits(loss: Any) -> Any:
    """Chooses the loss, or a dict of losses, to compile a model with, given that its outputs are logits.

    Returns:
        For the name of a cross-entropy, the loss that takes logits; any other loss unchanged.

    Raises:
        ValueError: for a cross-entropy of probabilities, with which the model would learn nothing.
    """
    if isinstance(loss, dict):
        return {name: loss_of_logits(part) for name, part in loss.items()}
    kinds = {
        "sparse_categorical_crossentropy": keras.losses.SparseCategoricalCrossentropy,
        "categorical_crossentropy": keras.losses.CategoricalCrossentropy,
        "binary_crossentropy": keras.losses.BinaryCrossentropy,
    }
    if isinstance(loss, str) and loss in kinds:
        return kinds[loss](from_logits=True)
    if any(isinstance(loss, kind) for kind in kinds.values()) and not loss.from_logits:
        raise ValueError(
            f"The model's outputs are logits: pass {type(loss).__name__}(from_logits=True), or leave `loss` out."
        )
    return loss
