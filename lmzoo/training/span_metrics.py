"""Metrics of token labels and of the spans that they mark; positions with the label -100 do not count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Tensor
from lmzoo.layers.crf import best_labels
from lmzoo.text.span_labels import SpanTable

IGNORED = -100  # the label of positions that do not count, as in PyTorch


@keras.saving.register_keras_serializable(package="lmzoo")
class TokenAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """The share of labeled positions that have their label.

    With weights (B, T), Keras' own metric divides what it counts in a batch by the width T, so that positions of wide
    batches count less. Here all positions of all batches count the same.

    `update_state` takes labels int (B, T), -100 where none counts, logits float (B, T, C) or the scores of
    `lmzoo.layers.TransitionScores`, and weights (B,) or (B, T).
    """

    def __init__(self, name: str = "accuracy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Count a batch."""
        y_true = ops.cast(y_true, "int32")  # (B, T)
        counts = ops.cast(y_true != IGNORED, self.dtype)  # (B, T)
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, self.dtype)
            counts *= sample_weight if len(sample_weight.shape) == 2 else sample_weight[:, None]
        if len(y_pred.shape) == 4:
            y_pred = ops.one_hot(best_labels(y_pred, y_true != IGNORED), y_pred.shape[-1])  # (B, T, C + 1)
        logits = ops.reshape(y_pred, (-1, ops.shape(y_pred)[-1]))  # (B * T, C)
        super().update_state(ops.reshape(ops.maximum(y_true, 0), (-1,)), logits, ops.reshape(counts, (-1,)))


@keras.saving.register_keras_serializable(package="lmzoo")
class SpanScore(keras.metrics.Metric):
    """Precision, recall or F1 of spans: a span counts as found if its type and both of its ends are right.

    Spans are read from labels as by conlleval and, by default, seqeval: see `lmzoo.text.span_labels.spans_of`. The
    counts are summed over all batches.

    Args:
        labels: names of the classes, in one of the schemes that `lmzoo.common.span_marks.SpanScheme` reads.
        score: `"f1"`, `"precision"` or `"recall"`.
        name: name of the metric, by default `span_` and the score.
        **kwargs: of `keras.metrics.Metric`.

    Raises:
        ValueError: for another score.

    `update_state` takes labels int (B, T), -100 where none counts, and logits float (B, T, C), or the scores of
    `lmzoo.layers.TransitionScores`. Weights, (B,) or (B, T),
    select: what has the weight 0 is left out, everything else counts the same.

    Example:

    ```python
    import numpy as np
    from lmzoo.training.span_metrics import SpanScore

    metric = SpanScore(["O", "B-PER", "I-PER"])
    logits = np.eye(3)[[[0, 1, 2, 0, 1]]]
    metric.update_state(np.array([[0, 1, 2, -100, 0]]), logits)
    metric.result()  # 0.67: one of two spans is right, and the only one there is was found
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
        """Count the spans of a batch."""
        y_true = ops.cast(y_true, "int32")  # (B, T)
        counts = y_true != IGNORED
        if sample_weight is not None:
            used = ops.convert_to_tensor(sample_weight) != 0
            counts &= used if len(used.shape) == 2 else used[:, None]
        # The words that count come first, so that neighbors are next to each other.
        place = ops.arange(ops.shape(counts)[1], dtype="int32")  # (T,)
        order = ops.argsort(ops.where(counts, place, place + ops.shape(counts)[1]), axis=1)  # (B, T)
        sides = []
        if len(y_pred.shape) == 4:
            found = best_labels(y_pred, y_true != IGNORED)  # (B, T)
        else:
            found = ops.cast(ops.argmax(y_pred, axis=-1), "int32")  # (B, T)
        for ids in (y_true, found):
            ids = ops.where(counts, ids, len(self._table.outside) - 1)  # (B, T)
            sides.append(self._spans(ops.take_along_axis(ids, order, axis=1)))
        (starts, ends, first, types), (found_starts, found_ends, found_first, found_types) = sides
        right = ends & found_ends & (first == found_first) & (types == found_types)  # (B, T)
        for variable, flags in ((self.correct, right), (self.predicted, found_starts), (self.actual, starts)):
            variable.assign_add(ops.sum(ops.cast(flags, variable.dtype)))

    def _spans(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return spans of labels, int32 (B, T).

        Returns:
            Each (B, T): where spans start, and end, bool; where the last one started, and its type, int32.
        """
        table = self._table
        before = ops.pad(ids[:, :-1], ((0, 0), (1, 0)), constant_values=len(table.outside) - 1)  # (B, T)
        continued = ops.take(table.continues.ravel(), before * len(table.outside) + ids)  # (B, T)
        inside = ~ops.take(table.outside, ids)
        starts = inside & ~continued
        ends = inside & ~ops.pad(continued[:, 1:], ((0, 0), (0, 1)))
        place = ops.arange(ops.shape(ids)[1], dtype="int32")  # (T,)
        first = ops.max(ops.where(starts[:, None] & (place[:, None] >= place), place, -1), axis=2)  # (B, T)
        return starts, ends, first, ops.take(table.type_of, ids)

    def result(self) -> Tensor:
        """Return the score; 0 where it is undefined."""
        precision = ops.divide_no_nan(self.correct, self.predicted)
        recall = ops.divide_no_nan(self.correct, self.actual)
        f1 = ops.divide_no_nan(2 * precision * recall, precision + recall)
        return {"precision": precision, "recall": recall, "f1": f1}[self.score]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "labels": self.labels, "score": self.score}
