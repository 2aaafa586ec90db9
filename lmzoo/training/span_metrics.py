"""Metrics over tokens and spans of tokens, which leave out positions whose label is -100."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.text.span_labels import OUTSIDE, split_label

IGNORED = -100  # the label of positions that do not count, as in PyTorch


@keras.saving.register_keras_serializable(package="lmzoo")
class TokenAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """The share of labelled positions that have their label.

    Keras' own, with weights (B, T), divides what it counts in a batch by the width T, so that positions of wide batches
    count less. Here each position of each batch counts alike.

    Args:
        name: name of the metric.
        **kwargs: of `keras.metrics.SparseCategoricalAccuracy`.

    `update_state` takes labels int (B, T), -100 where none counts, logits float (B, T, C) and weights (B,) or (B, T).
    """

    def __init__(self, name: str = "accuracy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Counts a batch."""
        y_true = ops.cast(y_true, "int32")  # (B, T)
        counts = ops.cast(y_true != IGNORED, self.dtype)  # (B, T)
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, self.dtype)
            counts *= sample_weight if len(sample_weight.shape) == 2 else sample_weight[:, None]
        logits = ops.reshape(y_pred, (-1, ops.shape(y_pred)[-1]))  # (B * T, C)
        return super().update_state(ops.reshape(ops.maximum(y_true, 0), (-1,)), logits, ops.reshape(counts, (-1,)))


@keras.saving.register_keras_serializable(package="lmzoo")
class SpanScore(keras.metrics.Metric):
    """Precision, recall or F1 of spans: a span counts as found if its type and both of its ends are right.

    Spans are read from labels as conlleval and seqeval's default do, see `lmzoo.text.span_labels.spans_of`; the counts
    are added up over all batches.

    Args:
        labels: names of the classes: "O", or a type after "B-", "I-", "E-" or "S-".
        score: `"f1"`, `"precision"` or `"recall"`.
        name: name of the metric, by default `span_` and the score.
        **kwargs: of `keras.metrics.Metric`.

    Raises:
        ValueError: for another score.

    `update_state` takes labels int (B, T), -100 where none counts, and logits float (B, T, C). Weights, (B,) or (B, T),
    choose rows: those of weight 0 are left out, the others count alike.

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
        split = [split_label(label) for label in labels]
        types = sorted({type_ for _, type_ in split})
        self._types = np.array([types.index(type_) for _, type_ in split], "int32")  # (C,)
        self._outside = np.array([mark == OUTSIDE for mark, _ in split])
        self._goes_on = np.array([mark in ("I", "E") for mark, _ in split])
        self._open = np.array([mark in ("B", "I") for mark, _ in split])
        self.correct, self.predicted, self.actual = (
            self.add_variable((), "zeros", name=name) for name in ("correct", "predicted", "actual")
        )

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Counts the spans of a batch."""
        y_true = ops.cast(y_true, "int32")  # (B, T)
        valid = y_true != IGNORED
        if sample_weight is not None:
            used = ops.convert_to_tensor(sample_weight) != 0
            valid &= used if len(used.shape) == 2 else used[:, None]
        before = _last_before(valid)  # (B, T)
        actual, predicted = ops.maximum(y_true, 0), ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        spans = [self._span_ids(ids, valid, before) for ids in (actual, predicted)]  # each (B, T)
        starts = [self._starts(ids, valid, before) for ids in (actual, predicted)]  # each (B, T)
        types = [ops.take(self._types, ids) for ids in (actual, predicted)]
        # A span is wrong where the other side has another span, or none, at one of its words.
        differs = valid & (spans[0] != spans[1])
        own = _positions(valid)[:, None]  # (1, 1, T)
        of_either = (spans[0][:, :, None] == own) | (spans[1][:, :, None] == own)  # (B, T, T)
        wrong = ops.any(differs[:, :, None] & of_either, axis=1)  # (B, T), by where the span starts
        right = starts[0] & starts[1] & (types[0] == types[1]) & ~wrong
        for variable, flags in ((self.correct, right), (self.predicted, starts[1]), (self.actual, starts[0])):
            variable.assign_add(ops.sum(ops.cast(flags, variable.dtype)))

    def _starts(self, ids: Any, valid: Any, before: Any) -> Any:
        """Where spans start, bool (B, T)."""
        previous = ops.take_along_axis(ids, ops.maximum(before, 0), axis=1)
        continued = (
            (before >= 0)
            & ops.take(self._goes_on, ids)
            & ops.take(self._open, previous)
            & (ops.take(self._types, ids) == ops.take(self._types, previous))
        )
        return valid & ~ops.take(self._outside, ids) & ~continued

    def _span_ids(self, ids: Any, valid: Any, before: Any) -> Any:
        """Where the span of each word starts, int32 (B, T); -1 outside of spans."""
        inside = valid & ~ops.take(self._outside, ids)
        return ops.where(inside, _last(self._starts(ids, valid, before)), -1)

    def result(self) -> Any:
        """The score; 0 where it is undefined."""
        precision = ops.divide_no_nan(self.correct, self.predicted)
        recall = ops.divide_no_nan(self.correct, self.actual)
        f1 = ops.divide_no_nan(2 * precision * recall, precision + recall)
        return {"precision": precision, "recall": recall, "f1": f1}[self.score]

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "labels": self.labels, "score": self.score}


def _positions(flags: Any) -> Any:
    """0 to T - 1, int32 (1, T)."""
    return ops.arange(ops.shape(flags)[1], dtype="int32")[None]


def _last(flags: Any) -> Any:
    """The last position up to each one, itself included, at which `flags` (B, T) holds; -1 if there is none."""
    position = _positions(flags)
    here = ops.where(flags, position, -1)  # (B, T)
    return ops.max(ops.where(position[:, :, None] >= position[:, None], here[:, None], -1), axis=2)


def _last_before(flags: Any) -> Any:
    """As `_last`, without the position itself."""
    return ops.pad(_last(flags)[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
