"""Loss and perplexity of language models whose outputs are log-probabilities of words."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor


@keras.saving.register_keras_serializable(package="lmzoo")
class UnrolledLoss(keras.losses.Loss):
    """Negative log-likelihood of a sequence of words, summed over steps and averaged over both directions.

    Without padding, this is the mean loss per word, multiplied by the number of steps. bilm-tf trained ELMo with the
    gradient of this loss.

    Call arguments: `y_true` (B, T, 2), unused; `y_pred` float (B, T, 2), log-probabilities of the words, 0 at padding.
    """

    def __init__(self, reduction: str = "sum_over_batch_size", name: str = "unrolled_loss") -> None:
        super().__init__(name=name, reduction=reduction)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the loss of each sequence, float32 (B,)."""
        return -ops.sum(ops.mean(y_pred, axis=-1), axis=-1)


@keras.saving.register_keras_serializable(package="lmzoo")
class Perplexity(keras.metrics.Metric):
    """Perplexity: the exponential of the mean negative log-likelihood per word.

    Args:
        side: int, direction to measure, an index on the last axis; None for both directions.
        name: str, name of the metric.
        dtype: dtype of the result.

    `update_state` takes targets int (..., 2), -1 at padding, and their log-probabilities, float (..., 2).

    Example:

    ```python
    import numpy as np
    from lmzoo.training import Perplexity

    metric = Perplexity()
    metric.update_state(np.array([[3, 4], [-1, -1]]), np.log([[0.5, 0.125], [1.0, 1.0]]))
    metric.result()  # 4.0
    ```
    """

    def __init__(
        self, side: int | None = None, name: str = "perplexity", dtype: str | keras.DTypePolicy | None = None
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self._direction = "down"  # tells tuners and callbacks that lower is better
        self.side = side
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch of targets int (..., 2) and log-probabilities float (..., 2); weights are ignored."""
        targets = ops.convert_to_tensor(y_true)
        log_probabilities = ops.cast(y_pred, self.dtype)
        if self.side is not None:
            targets = targets[..., self.side]
            log_probabilities = log_probabilities[..., self.side]
        is_word = ops.cast(targets >= 0, self.dtype)
        self.total.assign_add(ops.sum(log_probabilities * is_word))
        self.count.assign_add(ops.sum(is_word))

    def result(self) -> Tensor:
        """Return the perplexity of all words so far, float ()."""
        return ops.exp(-self.total / ops.maximum(self.count, 1))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "side": self.side}
