"""`lmzoo.text.span_labels` as TensorFlow ops: turns word logits into labeled spans."""

from __future__ import annotations

import tensorflow as tf

from lmzoo.text.graphs.token_ops import shift
from lmzoo.text.span_labels import SpanTable


def labeled_spans(
    table: SpanTable, texts: tf.Tensor, labels: tf.RaggedTensor, scores: tf.Tensor, places: tf.RaggedTensor
) -> dict[str, tf.Tensor]:
    """Return the spans of texts, as `TokenClassifier.tag` does from the labels of words.

    Args:
        table: the rules of the labels; if they do not mark spans, every word is a span.
        texts: `tf.string` (n,).
        labels: int (n, None), the labels of their w words.
        scores: float32 (w,), the probabilities of these.
        places: int32 (n, None, 2), where words begin and end.

    Returns:
        `text` and `label`, `tf.string` (n, S), `score`, float32 (n, S), `start` and `end`, int32 (n, S), where S is the
        largest number of spans of a text; padded with "", 0 and -1.
    """
    row, chosen = labels.value_rowids(), labels.values  # (w,)
    no_word = len(table.outside) - 1
    before = tf.where(shift(row, 1, -1) == row, shift(chosen, 1, no_word), no_word)  # (w,)
    inside = ~tf.gather(table.outside, chosen)  # (w,)
    begins = inside & ~tf.gather_nd(table.continues, tf.stack([before, chosen], axis=1))  # (w,)
    number = tf.boolean_mask(tf.cumsum(tf.cast(begins, tf.int32)) - 1, inside)  # of the span
    start, end = (tf.boolean_mask(places.values[:, side], inside) for side in (0, 1))
    start, end = tf.math.segment_min(start, number), tf.math.segment_max(end, number)  # (s,)
    score = tf.math.segment_mean(tf.boolean_mask(scores, inside), number)  # (s,)
    type_ = tf.gather(table.type_of, tf.boolean_mask(chosen, begins))  # (s,)
    label = tf.gather(tf.constant(table.types), type_)  # (s,)
    row = tf.boolean_mask(row, begins)  # (s,)
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    text = tf.strings.substr(tf.gather(texts, row), start, end - start, unit="UTF8_CHAR")
    count = tf.size(texts, tf.int64)

    def padded(values: tf.Tensor, nothing: str | float) -> tf.Tensor:
        return tf.RaggedTensor.from_value_rowids(values, row, count, validate=False).to_tensor(nothing)

    return {
        "text": padded(text, ""),
        "label": padded(label, ""),
        "score": padded(score, 0.0),
        "start": padded(start, -1),
        "end": padded(end, -1),
    }
