"""Metrics of token labels and of the spans that labels mark; positions with the label -100 are ignored.

Letters in shapes: B texts, T positions, C labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor
from lmzoo.layers.crf import find_best_labels
from lmzoo.text.span_labels import SpanTable

IGNORED = -100  # label of ignored positions, as in PyTorch


@keras.saving.register_keras_serializable(package="lmzoo")
class TokenAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """Fraction of labeled positions whose label is predicted correctly.

    With weights (B, T), Keras' own metric divides the sums of a batch by T, so that positions of wide batches count
    less. Here a position counts by its weight, whatever the width of its batch.

    `update_state` takes labels int (B, T), -100 at ignored positions, logits float (B, T, C) or the scores of
    `lmzoo.layers.TransitionScores`, and weights (B,) or (B, T).
    """

    def __init__(self, name: str = "accuracy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch of labels int (B, T), logits or transition scores, and weights (B,) or (B, T)."""
        y_true = ops.cast(y_true, "int32")  # (B, T)
        position_weights = ops.cast(y_true != IGNORED, self.dtype)  # (B, T)
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, self.dtype)
            position_weights *= sample_weight if len(sample_weight.shape) == 2 else sample_weight[:, None]
        if len(y_pred.shape) == 4:
            y_pred = ops.one_hot(find_best_labels(y_pred, y_true != IGNORED), y_pred.shape[-1])  # (B, T, C + 1)
        label_scores = ops.reshape(y_pred, (-1, ops.shape(y_pred)[-1]))  # (B * T, C), or C + 1 columns with a CRF
        label_ids = ops.reshape(ops.maximum(y_true, 0), (-1,))  # (B * T,)
        super().update_state(label_ids, label_scores, ops.reshape(position_weights, (-1,)))


@keras.saving.register_keras_serializable(package="lmzoo")
class SpanScore(keras.metrics.Metric):
    """Precision, recall or F1 of spans, over all batches.

    A predicted span is correct if its type, its start and its end are right. Spans are read from labels as in conlleval
    and, by default, seqeval; see `lmzoo.text.span_labels.find_marked_spans`.

    Args:
        labels: list of str, names of the labels, in a scheme that `lmzoo.common.span_marks.SpanScheme` reads.
        score: str, `"f1"`, `"precision"` or `"recall"`.
        name: str, name of the metric; by default `span_` followed by the score.
        **kwargs: arguments of `keras.metrics.Metric`.

    Raises:
        ValueError: If `score` is unknown.

    `update_state` takes labels int (B, T), -100 at ignored positions, and logits float (B, T, C), or the scores of
    `lmzoo.layers.TransitionScores`. Weights, (B,) or (B, T), only select: positions with the weight 0 are ignored, all
    others count equally.

    Example:

    ```python
    import numpy as np
    from lmzoo.training.span_metrics import SpanScore

    metric = SpanScore(["O", "B-PER", "I-PER"])
    logits = np.eye(3)[[[0, 1, 2, 0, 1]]]
    metric.update_state(np.array([[0, 1, 2, -100, 0]]), logits)
    metric.result()  # 0.67: one of the two predicted spans is right, and the only true span is found
    ```
    """

    def __init__(self, labels: Sequence[str], score: str = "f1", name: str | None = None, **kwargs: Any) -> None:
        if score not in ("f1", "precision", "recall"):
            raise ValueError(f'`score` must be "f1", "precision" or "recall", got {score!r}.')
        super().__init__(name=name or f"span_{score}", **kwargs)
        self.labels = list(labels)
        self.score = score
        self._table = SpanTable.of(labels)
        self.correct, self.predicted, self.actual = (
            self.add_variable((), "zeros", name=name) for name in ("correct", "predicted", "actual")
        )

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add the spans of a batch of labels and predictions; positions with the weight 0 are ignored."""
        y_true = ops.cast(y_true, "int32")  # (B, T)
        is_counted = y_true != IGNORED
        if sample_weight is not None:
            is_selected = ops.convert_to_tensor(sample_weight) != 0
            is_counted &= is_selected if len(is_selected.shape) == 2 else is_selected[:, None]
        # Move ignored positions to the end, so that neighboring words are adjacent.
        positions = ops.arange(ops.shape(is_counted)[1], dtype="int32")  # (T,)
        order = ops.argsort(ops.where(is_counted, positions, positions + ops.shape(is_counted)[1]), axis=1)  # (B, T)
        spans = []
        if len(y_pred.shape) == 4:
            predicted_ids = find_best_labels(y_pred, y_true != IGNORED)  # (B, T)
        else:
            predicted_ids = ops.cast(ops.argmax(y_pred, axis=-1), "int32")  # (B, T)
        for label_ids in (y_true, predicted_ids):
            label_ids = ops.where(is_counted, label_ids, len(self._table.outside) - 1)  # (B, T)
            spans.append(self._find_spans(ops.take_along_axis(label_ids, order, axis=1)))
        (
            (is_start, is_end, span_starts, types),
            (is_predicted_start, is_predicted_end, predicted_span_starts, predicted_types),
        ) = spans
        is_correct = (
            is_end & is_predicted_end & (span_starts == predicted_span_starts) & (types == predicted_types)
        )  # (B, T)
        for variable, flags in (
            (self.correct, is_correct),
            (self.predicted, is_predicted_start),
            (self.actual, is_start),
        ):
            variable.assign_add(ops.sum(ops.cast(flags, variable.dtype)))

    def _find_spans(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Find the spans that labels mark.

        Args:
            ids: int32 (B, T), indices of labels.

        Returns:
            Four tensors (B, T). For each position: whether a span starts there, bool; whether a span ends there, bool;
            the start of the latest span, int32, -1 before the first span; and the type of the label, int32.
        """
        table = self._table
        previous_ids = ops.pad(ids[:, :-1], ((0, 0), (1, 0)), constant_values=len(table.outside) - 1)  # (B, T)
        is_continued = ops.take(table.continues.ravel(), previous_ids * len(table.outside) + ids)  # (B, T)
        is_inside = ~ops.take(table.outside, ids)
        is_start = is_inside & ~is_continued
        is_end = is_inside & ~ops.pad(is_continued[:, 1:], ((0, 0), (0, 1)))
        positions = ops.arange(ops.shape(ids)[1], dtype="int32")  # (T,)
        span_starts = ops.max(
            ops.where(is_start[:, None] & (positions[:, None] >= positions), positions, -1), axis=2
        )  # (B, T)
        return is_start, is_end, span_starts, ops.take(table.type_of, ids)

    def result(self) -> Tensor:
        """Return the score over all batches so far, float (); 0 where it is undefined."""
        precision = ops.divide_no_nan(self.correct, self.predicted)
        recall = ops.divide_no_nan(self.correct, self.actual)
        f1 = ops.divide_no_nan(2 * precision * recall, precision + recall)
        return {"precision": precision, "recall": recall, "f1": f1}[self.score]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "labels": self.labels, "score": self.score}
