"""Losses for models whose outputs are logits."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import require_share
from lmzoo.common.tensor_types import Tensor


@keras.saving.register_keras_serializable(package="lmzoo")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy of logits with label smoothing (Szegedy et al., 2016).

    Labels are int (...), logits float (..., C) for C classes. Unlike Keras' own loss, this loss does not create label
    tensors with the shape of the logits.

    Args:
        label_smoothing: float in [0, 1), fraction of each label that is spread over all classes.
        name: str, name of the loss.
        reduction: str, reduction of `keras.losses.Loss`; by default the weighted mean.
        **kwargs: arguments of `keras.losses.Loss`.

    Raises:
        ValueError: if `label_smoothing` is out of range.

    Example:

    ```python
    import numpy as np
    from lmzoo.training.losses import SmoothedCrossEntropy

    loss = SmoothedCrossEntropy(label_smoothing=0.1)
    float(loss(np.array([0]), np.array([[2.0, 1.0, 0.0]], "float32")))  # 0.51
    ```
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        name: str = "smoothed_cross_entropy",
        reduction: str = "mean_with_sample_weight",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, reduction=reduction, **kwargs)
        require_share("label_smoothing", label_smoothing)
        self.label_smoothing = label_smoothing

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the loss of each label, float (...)."""
        smoothing = self.label_smoothing
        loss = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        if not smoothing:
            return loss
        uniform_loss = ops.logsumexp(y_pred, axis=-1) - ops.mean(y_pred, axis=-1)
        return (1 - smoothing) * loss + smoothing * uniform_loss

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


def make_loss_of_logits(loss: Any) -> Any:
    """Return a loss, or a dict of losses, for a model whose outputs are logits.

    Args:
        loss: a Keras loss, the name of a loss, or a dict of losses and names.

    Returns:
        For the name of a cross-entropy, a loss that takes logits; for a dict, a dict of such losses; any other loss
        unchanged.

    Raises:
        ValueError: if the loss is a cross-entropy of probabilities.
    """
    if isinstance(loss, dict):
        return {name: make_loss_of_logits(entry) for name, entry in loss.items()}
    loss_classes = {
        "sparse_categorical_crossentropy": keras.losses.SparseCategoricalCrossentropy,
        "categorical_crossentropy": keras.losses.CategoricalCrossentropy,
        "binary_crossentropy": keras.losses.BinaryCrossentropy,
    }
    if isinstance(loss, str) and loss in loss_classes:
        return loss_classes[loss](from_logits=True)
    if any(isinstance(loss, cls) for cls in loss_classes.values()) and not loss.get_config().get("from_logits", True):
        raise ValueError(
            f"The model's outputs are logits: pass {type(loss).__name__}(from_logits=True), or leave `loss` out."
        )
    return loss
