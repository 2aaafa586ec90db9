"""Decoding of span labels as TensorFlow ops: labeled spans from the labels of words."""

from __future__ import annotations

import tensorflow as tf

from lmzoo.text.graphs.token_ops import shift
from lmzoo.text.span_labels import SpanTable


def find_labeled_spans(
    table: SpanTable, texts: tf.Tensor, labels: tf.RaggedTensor, scores: tf.Tensor, places: tf.RaggedTensor
) -> dict[str, tf.Tensor]:
    """Return the spans that word labels mark, with the same results as `TokenClassifier.tag`.

    Args:
        table: `SpanTable`, rules of the labels; if they do not mark spans, every word is a span.
        texts: `tf.string` (n,), the tagged texts.
        labels: int (n, None), indices of the labels of all w words.
        scores: float32 (w,), probabilities of the labels.
        places: int32 (n, None, 2), offsets of the words in characters.

    Returns:
        Dict of `text` and `label`, `tf.string` (n, S), padded with ""; `score`, float32 (n, S), the mean probability of
        the words' labels, padded with 0; and `start` and `end`, int32 (n, S), padded with -1. S is the largest number
        of spans in a text.
    """
    rows = labels.value_rowids()  # (w,)
    word_labels = labels.values  # (w,)
    no_word = len(table.outside) - 1
    previous_labels = tf.where(shift(rows, 1, -1) == rows, shift(word_labels, 1, no_word), no_word)  # (w,)
    in_span = ~tf.gather(table.outside, word_labels)  # (w,)
    begins = in_span & ~tf.gather_nd(table.continues, tf.stack([previous_labels, word_labels], axis=1))  # (w,)
    span_indices = tf.boolean_mask(tf.cumsum(tf.cast(begins, tf.int32)) - 1, in_span)  # index of each word's span
    starts, ends = (tf.boolean_mask(places.values[:, side], in_span) for side in (0, 1))
    starts = tf.math.segment_min(starts, span_indices)  # (s,)
    ends = tf.math.segment_max(ends, span_indices)  # (s,)
    span_scores = tf.math.segment_mean(tf.boolean_mask(scores, in_span), span_indices)  # (s,)
    type_indices = tf.gather(table.type_of, tf.boolean_mask(word_labels, begins))  # (s,)
    span_labels = tf.gather(tf.constant(table.types), type_indices)  # (s,)
    rows = tf.boolean_mask(rows, begins)  # (s,)
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    span_texts = tf.strings.substr(tf.gather(texts, rows), starts, ends - starts, unit="UTF8_CHAR")
    num_texts = tf.size(texts, tf.int64)

    def to_dense(values: tf.Tensor, default: str | float) -> tf.Tensor:
        return tf.RaggedTensor.from_value_rowids(values, rows, num_texts, validate=False).to_tensor(default)

    return {
        "text": to_dense(span_texts, ""),
        "label": to_dense(span_labels, ""),
        "score": to_dense(span_scores, 0.0),
        "start": to_dense(starts, -1),
        "end": to_dense(ends, -1),
    }
