"""Operations that the tokenizers' graphs share."""

from __future__ import annotations

import tensorflow as tf

EDGE = 0x110000  # more than any code point


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


def first_from(mask: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Return the first place where `mask`, bool (h,), is true at or after each of `places`, int64, or h."""
    found = tf.concat([tf.where(mask)[:, 0], [tf.size(mask, tf.int64)]], axis=0)
    before = tf.concat([[0], tf.cumsum(tf.cast(mask, tf.int64))], axis=0)  # (h + 1,)
    return tf.gather(found, tf.gather(before, places))


def last_up_to(mask: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Return the last place where `mask`, bool (h,), is true at or before each of `places`, int64, or -1."""
    found = tf.concat([[-1], tf.where(mask)[:, 0]], axis=0)
    before = tf.concat([[0], tf.cumsum(tf.cast(mask, tf.int64))], axis=0)  # (h + 1,)
    return tf.gather(found, tf.gather(before, places + 1))


def join_letters(
    codes: tf.Tensor, row: tf.Tensor, begins: tf.Tensor, inside: tf.Tensor, rows: tf.Tensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Join the letters of texts to words.

    Args:
        codes: int32 (c,), the code points of n texts.
        row: int64 (c,), the text of each.
        begins: bool (c,), whether a word begins there.
        inside: bool (c,), whether it is in a word.
        rows: int64 (), n.

    Returns:
        Words, `tf.string` (n, None), and their letters, int32 (m, None).
    """
    first = tf.where(tf.boolean_mask(begins, inside))[:, 0]  # (m,)
    letters = tf.RaggedTensor.from_row_starts(tf.boolean_mask(codes, inside), first, validate=False)
    words = tf.strings.unicode_encode(letters, "UTF-8")  # (m,)
    row = tf.boolean_mask(row, begins & inside)  # (m,)
    return tf.RaggedTensor.from_value_rowids(words, row, rows, validate=False), letters


def lookup_table(
    entries: dict[str, int] | dict[int, int], key_type: tf.DType, default: int
) -> tf.lookup.StaticHashTable:
    """Return a lookup table with int32 values."""
    keys = list(entries) or ([""] if key_type == tf.string else [-1])  # TensorFlow has no empty tables
    values = list(entries.values()) or [default]
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values, key_type, tf.int32), default)
