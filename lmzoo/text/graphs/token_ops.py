"""Operations that the tokenizers' graphs share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

EDGE = 0x110000  # more than any code point


def decode_with_edges(texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Decodes texts, `tf.string` (n,), with an edge in front of each that separates it from the text before.

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
    starts = tf.cast(tf.gather(values.row_starts(), values.value_rowids()), tf.int32)
    return tf.range(tf.size(starts)) - starts


def shift(values: tf.Tensor, by: int, fill: int | bool) -> tf.Tensor:
    """Values (c,) shifted by some positions, to the right if `by` is positive."""
    edge = tf.fill([abs(by)], tf.cast(fill, values.dtype))
    return (tf.concat([edge, values], 0) if by > 0 else tf.concat([values, edge], 0)[-by:])[: tf.size(values)]


def ends_in_bytes(codes: tf.Tensor) -> tf.Tensor:
    """The byte offsets at which code points, int32 (c,), end when they are encoded as UTF-8: int64 (c,)."""
    return tf.cumsum(size_in_bytes(codes))


def size_in_bytes(codes: tf.Tensor) -> tf.Tensor:
    """Return the bytes of code points, int32 (c,), when they are encoded as UTF-8: int64 (c,)."""
    return sum(tf.cast(codes >= least, tf.int64) for least in (0, 0x80, 0x800, 0x10000))


class SpecialTokenGraph(tf.Module):
    """Finds special tokens in code points; the longest where one begins with another.

    Tokens of which one begins inside of another, such as "<a" and "a>", are not told apart.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        super().__init__()
        self._numbers = np.array(sorted(range(len(tokens)), key=lambda i: -len(tokens[i]))) + 1  # (k,), longest first
        tokens = [tokens[number - 1] for number in self._numbers]
        self._openings = np.array(sorted({ord(token[0]) for token in tokens}))  # (o,)
        self._lengths = np.array([len(token) for token in tokens])  # (k,)
        self._patterns = np.array([[*map(ord, t), *[-1] * (self._lengths.max() - len(t))] for t in tokens])  # (k, l)

    def __call__(self, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The positions of special tokens.

        Args:
            codes: int32 (c,), texts one after another, separated by a code point that is not in any token.

        Returns:
            The number of the token that begins at each code point, int64 (c,), from 1, or 0 if there is none; and
            whether each code point is part of a token, bool (c,).
        """
        places = tf.where(tf.reduce_any(codes[:, None] == self._openings, axis=1))  # (p, 1)
        longest = self._patterns.shape[1]
        window = tf.gather(tf.pad(codes, [[0, longest]]), places + tf.range(longest, dtype=tf.int64))  # (p, l)
        equal = tf.reduce_all((window[:, None] == self._patterns) | (self._patterns < 0), axis=-1)  # (p, k)
        hit = tf.where(tf.reduce_any(equal, axis=1))[:, 0]  # (h,)
        begin, token = tf.gather(places[:, 0], hit), tf.argmax(tf.cast(tf.gather(equal, hit), tf.int32), axis=1)  # (h,)
        length = tf.shape(codes, tf.int64)  # (1,)
        covered = tf.ragged.range(begin, begin + tf.gather(self._lengths, token)).values[:, None]  # (v, 1)
        inside = tf.scatter_nd(covered, tf.ones_like(covered[:, 0]), length) > 0  # (c,)
        return tf.scatter_nd(begin[:, None], tf.gather(self._numbers, token), length), inside
