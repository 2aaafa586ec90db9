"""Loss of a conditional random field."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor
from lmzoo.layers.crf import negative_log_likelihood
from lmzoo.training.span_metrics import IGNORED


@keras.saving.register_keras_serializable(package="lmzoo")
class CrfLoss(keras.losses.Loss):
    """Negative log-likelihood of label sequences, averaged over words (Lample et al., 2016).

    Call arguments: `y_true` int (B, T), labels of the words, -100 elsewhere; `y_pred` float (B, T, C + 1, C + 1) for C
    labels, the scores of `lmzoo.layers.TransitionScores`; weights (B,), or (B, T) with equal weights for all words of a
    text.

    Example:

    ```python
    import numpy as np
    from lmzoo.training import CrfLoss

    scores = np.zeros((1, 3, 5, 5), "float32")  # of 4 labels, all equally probable
    CrfLoss()(np.array([[2, -100, 0]]), scores)  # 1.39, the logarithm of 4
    ```
    """

    def __init__(self, reduction: str = "mean_with_sample_weight", name: str = "crf_loss") -> None:
        super().__init__(name=name, reduction=reduction)

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Any = None) -> Tensor:
        """Return the reduced loss: by default the weighted mean over all words, float ()."""
        word_weights = ops.cast(ops.convert_to_tensor(y_true) != IGNORED, "float32")  # (B, T)
        if sample_weight is not None:
            weights = ops.cast(sample_weight, "float32")
            word_weights = word_weights * (weights if len(weights.shape) == 2 else weights[:, None])
        return super().__call__(y_true, y_pred, word_weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return each word's loss, float32 (B, T): its text's loss divided by the number of words, 0 elsewhere."""
        is_word = ops.cast(y_true, "int32") != IGNORED  # (B, T)
        loss = negative_log_likelihood(y_pred, y_true, is_word)  # (B,)
        num_words = ops.maximum(ops.sum(ops.cast(is_word, loss.dtype), axis=1), 1)
        return ops.where(is_word, ops.expand_dims(loss / num_words, 1), 0.0)
