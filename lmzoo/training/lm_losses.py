"""Loss and metric of models whose outputs are log-probabilities of words."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor


@keras.saving.register_keras_serializable(package="lmzoo")
class UnrolledLoss(keras.losses.Loss):
    """The negative log-likelihood of a sequence of words: summed over its steps, averaged over both directions.

    ELMo was trained with its gradient (bilm-tf). It is the mean loss of a word times the number of steps.

    Call arguments: `y_true` (B, T, 2), unused; `y_pred` float (B, T, 2), log-probabilities of the words, 0 where
    there is no word.
    """

    def __init__(self, reduction: str = "sum_over_batch_size", name: str = "unrolled_loss") -> None:
        super().__init__(name=name, reduction=reduction)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the loss of each sequence: float32 (B,)."""
        return -ops.sum(ops.mean(y_pred, axis=-1), axis=-1)


@keras.saving.register_keras_serializable(package="lmzoo")
class Perplexity(keras.metrics.Metric):
    """The exponential of the mean negative log-likelihood of all words.

    Args:
        side: index on the last axis of the direction that counts; None for both.
        name: str.
        dtype: dtype of the result.

    `update_state` takes targets (..., 2), -1 where there is no word, and their log-probabilities, float (..., 2).

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
        self._direction = "down"  # better if lower, for tuners and callbacks
        self.side = side
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch; weights are unused."""
        targets, found = ops.convert_to_tensor(y_true), ops.cast(y_pred, self.dtype)
        if self.side is not None:
            targets, found = targets[..., self.side], found[..., self.side]
        real = ops.cast(targets >= 0, self.dtype)
        self.total.assign_add(ops.sum(found * real))
        self.count.assign_add(ops.sum(real))

    def result(self) -> Tensor:
        """Return the perplexity so far."""
        return ops.exp(-self.total / ops.maximum(self.count, 1))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "side": self.side}
