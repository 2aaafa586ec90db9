"""Metrics over all examples: Pearson correlation, and micro F1 for multi-label classification."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor


@keras.saving.register_keras_serializable(package="lmzoo")
class PearsonCorrelation(keras.metrics.Metric):
    """Pearson correlation between labels and predictions, over all examples.

    Keras' own metric is the mean of the batches' correlations, which depends on how the examples are batched. This
    metric merges the means and squared deviations of the batches, which is more precise than adding up squares (Chan et
    al., 1979, "Updating formulae and a pairwise algorithm for computing sample variances").

    The result is NaN while all labels, or all predictions, are equal.

    Example:

    ```python
    import numpy as np
    from lmzoo.training import PearsonCorrelation

    metric = PearsonCorrelation()
    metric.update_state(np.array([0.0, 1.0]), np.array([0.1, 0.4]))
    metric.update_state(np.array([3.0]), np.array([0.2]))
    metric.result()  # 0.14..., not the mean of two batches
    ```
    """

    def __init__(self, name: str = "pearson", dtype: str | keras.DTypePolicy | None = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self._direction = "up"  # tells tuners and callbacks that higher is better
        for variable_name in ("weight", "mean_x", "mean_y", "sum_xx", "sum_yy", "sum_xy"):
            setattr(self, variable_name, self.add_variable((), "zeros", name=variable_name))

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch of labels, predictions and weights, each float (B,) or (B, 1)."""
        x, y = (ops.reshape(ops.cast(values, self.dtype), (-1,)) for values in (y_true, y_pred))  # (B,)
        weights = ops.ones_like(x) if sample_weight is None else ops.cast(sample_weight, self.dtype)
        weights = ops.reshape(weights, (-1,))  # (B,)
        batch_weight = ops.sum(weights)
        scale = 1 / ops.where(batch_weight > 0, batch_weight, 1)
        mean_x = ops.sum(weights * x) * scale
        mean_y = ops.sum(weights * y) * scale
        x = x - mean_x
        y = y - mean_y
        total_weight = self.weight + batch_weight
        fraction = batch_weight / ops.where(total_weight > 0, total_weight, 1)
        shift_x = mean_x - self.mean_x
        shift_y = mean_y - self.mean_y
        between_weight = self.weight * fraction
        self.sum_xx.assign_add(ops.sum(weights * x * x) + between_weight * shift_x * shift_x)
        self.sum_yy.assign_add(ops.sum(weights * y * y) + between_weight * shift_y * shift_y)
        self.sum_xy.assign_add(ops.sum(weights * x * y) + between_weight * shift_x * shift_y)
        self.mean_x.assign_add(fraction * shift_x)
        self.mean_y.assign_add(fraction * shift_y)
        self.weight.assign(total_weight)

    def result(self) -> Tensor:
        """Return the correlation over all examples so far, float () from -1 to 1."""
        correlation = self.sum_xy / (ops.sqrt(self.sum_xx) * ops.sqrt(self.sum_yy))
        return ops.clip(correlation, -1, 1)


@keras.saving.register_keras_serializable(package="lmzoo")
class MicroF1(keras.metrics.F1Score):
    """Micro-averaged F1 of multi-label classification, from logits.

    Unlike Keras' own metric, this metric takes logits, not probabilities. A label counts as predicted if its
    probability is at least one half.

    `update_state` takes labels (B, C) for C classes, 0 or 1, logits float (B, C) and weights (B,).

    Example:

    ```python
    import numpy as np
    from lmzoo.training import MicroF1

    metric = MicroF1()
    metric.update_state(np.array([[1, 0, 1], [0, 0, 0]]), np.array([[2.0, -1.0, -3.0], [-2.0, -1.0, -4.0]]))
    metric.result()  # 0.67: the only predicted label is right, and one of the two true labels is found
    ```
    """

    def __init__(self, name: str = "micro_f1", dtype: str | keras.DTypePolicy | None = None) -> None:
        super().__init__(average="micro", threshold=0.5, name=name, dtype=dtype)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch of labels (B, C), logits (B, C) and weights (B,)."""
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = ops.reshape(y_true, (-1, y_pred.shape[-1]))  # the static shape of Python batches lacks C
        super().update_state(y_true, ops.cast(y_pred >= 0, self.dtype), sample_weight)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {"name": config["name"], "dtype": config["dtype"]}


def merge_metrics(metrics: Any, weighted_metrics: Any) -> list[Any] | dict[str, Any]:
    """Merge metrics and weighted metrics into one list or, if they are dicts of lists by output, one dict.

    None stands for no metrics.

    Raises:
        TypeError: If either argument is not a list, a dict or None, or one is a list and the other a dict.
    """
    for value in (metrics, weighted_metrics):
        if not isinstance(value, (list, tuple, dict, type(None))):
            raise TypeError(f'`metrics` must be a list, such as ["accuracy"], or a dict of lists, got {value!r:.60}.')
    if len({isinstance(value, dict) for value in (metrics, weighted_metrics) if value}) > 1:
        raise TypeError("`metrics` and `weighted_metrics` must both be lists, or both be dicts of lists by output.")
    if isinstance(metrics, dict) or isinstance(weighted_metrics, dict):
        metric_dicts = [metrics or {}, weighted_metrics or {}]
        output_names = dict.fromkeys(output_name for metric_dict in metric_dicts for output_name in metric_dict)
        return {
            output_name: [
                metric
                for metric_dict in metric_dicts
                for metric in keras.tree.flatten(metric_dict.get(output_name, []))
            ]
            for output_name in output_names
        }
    return [*(metrics or []), *(weighted_metrics or [])]
