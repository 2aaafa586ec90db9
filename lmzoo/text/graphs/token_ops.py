"""TensorFlow ops that the tokenizers' graphs share."""

from __future__ import annotations

import tensorflow as tf

EDGE = 0x110000  # more than any code point


def indices_in_rows(values: tf.RaggedTensor) -> tf.Tensor:
    """Return the index of each of the c values of a ragged tensor (n, None) within its row: int32 (c,)."""
    starts = tf.cast(tf.gather(values.row_starts(), compute_row_indices(values)), tf.int32)
    return tf.range(tf.size(starts)) - starts


# TensorFlow's own `value_rowids` and `repeat` make a mask as wide as the longest row: gigabytes if one of many words is
# very long.
def compute_row_indices(values: tf.RaggedTensor) -> tf.Tensor:
    """Return the row index of each of the c values of a ragged tensor (n, None): int64 (c,)."""
    ends = values.row_splits[1:]
    return tf.searchsorted(ends, tf.range(values.row_splits[-1]), side="right", out_type=tf.int64)


def repeat(values: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Repeat value i `counts[i]` times, for n values and counts: (sum of `counts`,)."""
    ends = tf.cumsum(counts)
    return tf.gather(values, tf.searchsorted(ends, tf.range(tf.reduce_sum(counts)), side="right"))


def shift(values: tf.Tensor, by: int, fill: int | bool) -> tf.Tensor:
    """Shift values by `by` positions, to the right if `by` is positive, and fill the gap with `fill`: (c,)."""
    gap = tf.fill([abs(by)], tf.cast(fill, values.dtype))
    return (tf.concat([gap, values], 0) if by > 0 else tf.concat([values, gap], 0)[-by:])[: tf.size(values)]


def ends_in_bytes(codes: tf.Tensor) -> tf.Tensor:
    """Return the byte offset at which each code point, int32 (c,), ends in UTF-8: int64 (c,)."""
    return tf.cumsum(size_in_bytes(codes))


def size_in_bytes(codes: tf.Tensor) -> tf.Tensor:
    """Return the number of UTF-8 bytes of each code point, int32 (c,): int64 (c,)."""
    return sum(tf.cast(codes >= minimum, tf.int64) for minimum in (0, 0x80, 0x800, 0x10000))


def find_bytes(sizes: tf.RaggedTensor, rows: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Return the flat index of the value that holds each byte: int64 (p,).

    A byte after the end of a row belongs to the first value of the next row.

    Args:
        sizes: int64 (n, None), sizes of the values in bytes.
        rows: int64 (p,), row of each byte.
        places: int (p,), index of each byte in its row.
    """
    ends = tf.cumsum(sizes.values)  # (c,)
    row_begins = tf.gather(tf.pad(ends, [[1, 0]]), sizes.row_starts())  # (n,)
    places = tf.gather(row_begins, rows) + tf.cast(places, tf.int64)
    return tf.searchsorted(ends, places, side="right", out_type=tf.int64)


def find_first_from(mask: tf.Tensor, places: tf.Tensor, skipped: tf.Tensor | int = 0) -> tf.Tensor:
    """Return the first index at or after each place where a mask is true, or h if there is none: int64 (p,).

    Args:
        mask: bool (h,), array to search.
        places: int64 (p,), indices from which to search, 0 to h.
        skipped: int, or int (p,) with one value per place, number of indices with a true value to skip.
    """
    true_indices = tf.concat([tf.where(mask)[:, 0], [tf.size(mask, tf.int64)]], axis=0)
    num_earlier = tf.concat([[0], tf.cumsum(tf.cast(mask, tf.int64))], axis=0)  # (h + 1,)
    ranks = tf.gather(num_earlier, places) + tf.cast(skipped, tf.int64)
    return tf.gather(true_indices, tf.minimum(ranks, tf.size(true_indices, tf.int64) - 1))


def find_last_up_to(mask: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Return the last index at or before each place where a mask is true, or -1 if there is none: int64 (p,).

    Args:
        mask: bool (h,), array to search.
        places: int64 (p,), indices from which to search backward, -1 to h - 1.
    """
    true_indices = tf.concat([[-1], tf.where(mask)[:, 0]], axis=0)
    num_earlier = tf.concat([[0], tf.cumsum(tf.cast(mask, tf.int64))], axis=0)  # (h + 1,)
    return tf.gather(true_indices, tf.gather(num_earlier, places + 1))


def join_letters(
    codes: tf.Tensor, row: tf.Tensor, begins: tf.Tensor, inside: tf.Tensor, rows: tf.Tensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Join the characters of texts into words.

    Args:
        codes: int32 (c,), code points of n texts.
        row: int64 (c,), index of the text of each code point.
        begins: bool (c,), whether a word begins at each code point.
        inside: bool (c,), whether each code point is in a word.
        rows: int64 (), number n of texts.

    Returns:
        The m words, `tf.string` (n, None), and their characters, int32 (m, None).
    """
    word_starts = tf.where(tf.boolean_mask(begins, inside))[:, 0]  # (m,)
    characters = tf.RaggedTensor.from_row_starts(tf.boolean_mask(codes, inside), word_starts, validate=False)
    words = tf.strings.unicode_encode(characters, "UTF-8")  # (m,)
    word_rows = tf.boolean_mask(row, begins & inside)  # (m,)
    return tf.RaggedTensor.from_value_rowids(words, word_rows, rows, validate=False), characters


def lookup_table(
    entries: dict[str, int] | dict[int, int], key_type: tf.DType, default: int
) -> tf.lookup.StaticHashTable:
    """Create a lookup table with int32 values, which returns `default` for missing keys."""
    keys = list(entries) or ([""] if key_type == tf.string else [-1])  # TensorFlow has no empty tables
    values = list(entries.values()) or [default]
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values, key_type, tf.int32), default)
