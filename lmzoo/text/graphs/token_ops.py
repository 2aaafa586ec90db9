"""Operations that the tokenizers' graphs share."""

from __future__ import annotations

import tensorflow as tf

EDGE = 0x110000  # more than any code point


def decode_with_edges(texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Decode texts, `tf.string` (n,), with an edge in front of each that separates it from the text before.

    Invalid bytes become U+FFFD.

    Returns:
        Code points, int32 (n, None), which begin with `EDGE`; and for each its index in the text, int32 (c,), -1 for
        the edges.
    """
    codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
    codes = tf.concat([tf.fill([codes.nrows(), 1], EDGE), codes], axis=1)
    return codes, indices_in_rows(codes) - 1


def indices_in_rows(values: tf.RaggedTensor) -> tf.Tensor:
    """For each of the flat values of (n, None), its index in its row: int32 (c,)."""
    starts = tf.cast(tf.gather(values.row_starts(), rows_of(values)), tf.int32)
    return tf.range(tf.size(starts)) - starts


# TensorFlow's own functions for both make a mask of all rows by the longest one: gigabytes for many words, one of which
# is very long.
def rows_of(values: tf.RaggedTensor) -> tf.Tensor:
    """Return for each of the flat values of (n, None) its row: int64 (c,)."""
    ends = values.row_splits[1:]
    return tf.searchsorted(ends, tf.range(values.row_splits[-1]), side="right", out_type=tf.int64)


def repeat(values: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Return values (n,), each as often as its count, int (n,), says: (c,)."""
    ends = tf.cumsum(counts)
    return tf.gather(values, tf.searchsorted(ends, tf.range(tf.reduce_sum(counts)), side="right"))


def shift(values: tf.Tensor, by: int, fill: int | bool) -> tf.Tensor:
    """Return values (c,) shifted by some positions, to the right if `by` is positive."""
    edge = tf.fill([abs(by)], tf.cast(fill, values.dtype))
    return (tf.concat([edge, values], 0) if by > 0 else tf.concat([values, edge], 0)[-by:])[: tf.size(values)]


def ends_in_bytes(codes: tf.Tensor) -> tf.Tensor:
    """Return the byte offsets at which code points, int32 (c,), end when they are encoded as UTF-8: int64 (c,)."""
    return tf.cumsum(size_in_bytes(codes))


def size_in_bytes(codes: tf.Tensor) -> tf.Tensor:
    """Return the bytes of code points, int32 (c,), when they are encoded as UTF-8: int64 (c,)."""
    return sum(tf.cast(codes >= least, tf.int64) for least in (0, 0x80, 0x800, 0x10000))
