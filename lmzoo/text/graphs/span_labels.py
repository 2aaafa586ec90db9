"""`lmzoo.text.span_labels` as TensorFlow ops: turns word logits into labeled spans."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lmzoo.text.graphs.token_ops import shift
from lmzoo.text.span_labels import SpanTable


class SpanGraph:
    """`TokenClassifier.tag` from the labels of words on; if labels do not mark spans, every word is a span."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._table = SpanTable.of(labels)

    def __call__(
        self, texts: tf.Tensor, labels: tf.RaggedTensor, scores: tf.Tensor, places: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        """Return the spans of texts, `tf.string` (n,).

        Args:
            texts: `tf.string` (n,).
            labels: int (n, None), the labels of their w words.
            scores: float32 (w,), the probabilities of these.
            places: int32 (n, None, 2), where words begin and end.

        Returns:
            `text` and `label`, `tf.string` (n, S), `score`, float32 (n, S), `start` and `end`, int32 (n, S), where S is
            the largest number of spans of a text; padded with "", 0 and -1.
        """
        row, chosen = labels.value_rowids(), labels.values  # (w,)
        no_word = len(self._table.outside) - 1
        before = tf.where(shift(row, 1, -1) == row, shift(chosen, 1, no_word), no_word)  # (w,)
        inside = ~tf.gather(self._table.outside, chosen)  # (w,)
        begins = inside & ~tf.gather_nd(self._table.continues, tf.stack([before, chosen], axis=1))  # (w,)
        number = tf.boolean_mask(tf.cumsum(tf.cast(begins, tf.int32)) - 1, inside)  # of the span
        start, end = (tf.boolean_mask(places.values[:, side], inside) for side in (0, 1))
        start, end = tf.math.segment_min(start, number), tf.math.segment_max(end, number)  # (s,)
        score = tf.math.segment_mean(tf.boolean_mask(scores, inside), number)  # (s,)
        type_ = tf.gather(self._table.type_of, tf.boolean_mask(chosen, begins))  # (s,)
        label = tf.gather(tf.constant(self._table.types), type_)  # (s,)
        row = tf.boolean_mask(row, begins)  # (s,)
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        text = tf.strings.substr(tf.gather(texts, row), start, end - start, unit="UTF8_CHAR")
        filled = {
            "text": (text, ""),
            "label": (label, ""),
            "score": (score, 0.0),
            "start": (start, -1),
            "end": (end, -1),
        }
        count = tf.size(texts, tf.int64)
        return {
            name: tf.RaggedTensor.from_value_rowids(values, row, count, validate=False).to_tensor(nothing)
            for name, (values, nothing) in filled.items()
        }
