"""Cross-entropy with label smoothing, and matching of losses to outputs that are logits or probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import require_share
from lmzoo.common.tensor_types import Tensor

# The functions and classes of losses that take probabilities unless `from_logits` is set.
_CROSS_ENTROPIES = (
    (keras.losses.binary_crossentropy, keras.losses.BinaryCrossentropy),
    (keras.losses.binary_focal_crossentropy, keras.losses.BinaryFocalCrossentropy),
    (keras.losses.categorical_crossentropy, keras.losses.CategoricalCrossentropy),
    (keras.losses.categorical_focal_crossentropy, keras.losses.CategoricalFocalCrossentropy),
    (keras.losses.sparse_categorical_crossentropy, keras.losses.SparseCategoricalCrossentropy),
)
_NAMES_BY_SHAPE = ("crossentropy", "ce")  # names for which Keras chooses a cross-entropy by the shapes of a batch


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
        ValueError: If `label_smoothing` is out of range.

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


def match_loss(loss: Any, of_logits: bool = True) -> Any:
    """Return a loss, or a dict or list of losses, that takes the outputs of a model.

    Args:
        loss: a Keras loss, the name of a loss, its function or class, or a dict or list of these.
        of_logits: whether the outputs are logits; if not, they are probabilities.

    Returns:
        For the name, function or class of a cross-entropy, a loss that takes the outputs; any other loss unchanged. For
        a dict or list, a dict or list of such losses.

    Raises:
        ValueError: If a loss takes probabilities and the outputs are logits, or the reverse; or, if the outputs are
            logits, if a name is unknown or stands for several cross-entropies ("crossentropy", "ce").
    """
    if isinstance(loss, Mapping):
        return {name: match_loss(entry, of_logits) for name, entry in loss.items()}
    if isinstance(loss, (list, tuple)):
        return [match_loss(entry, of_logits) for entry in loss]
    if isinstance(loss, keras.losses.Loss):
        _check_outputs(loss, of_logits)
        return loss
    if not of_logits:
        return loss
    if isinstance(loss, str) and loss.lower() in _NAMES_BY_SHAPE:
        raise ValueError(
            f"The model's outputs are logits, which the loss {loss!r} does not take: name one cross-entropy, such as "
            '"sparse_categorical_crossentropy", or leave `loss` out.'
        )
    keras_loss = keras.losses.get(loss)
    for function, loss_class in _CROSS_ENTROPIES:
        if keras_loss is function or type(keras_loss) is loss_class:
            return loss_class(from_logits=True)
    return loss


def _check_outputs(loss: keras.losses.Loss, of_logits: bool) -> None:
    """Check that a loss takes logits if `of_logits` is True, else probabilities.

    Raises:
        ValueError: If the loss takes the other kind of outputs.
    """
    if loss.get_config().get("from_logits", of_logits) == of_logits:
        return
    name = type(loss).__name__
    if of_logits:
        raise ValueError(f"The model's outputs are logits: pass {name}(from_logits=True), or leave `loss` out.")
    raise ValueError(f"The model's outputs are probabilities: pass {name}(from_logits=False), or leave `loss` out.")
