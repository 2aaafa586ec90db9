"""What the tokenizers' graphs share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def shift(values: tf.Tensor, by: int, fill: int | bool) -> tf.Tensor:
    """Values (c,) moved by some places, to the right if `by` is positive."""
    edge = tf.fill([abs(by)], tf.cast(fill, values.dtype))
    return (tf.concat([edge, values], 0) if by > 0 else tf.concat([values, edge], 0)[-by:])[: tf.size(values)]


def ends_in_bytes(codes: tf.Tensor) -> tf.Tensor:
    """Where each of code points, int32 (c,), ends if they are written as UTF-8: int64 (c,)."""
    return tf.cumsum(sum(tf.cast(codes >= least, tf.int64) for least in (0, 0x80, 0x800, 0x10000)))


class SpecialTokenGraph(tf.Module):
    """Finds special tokens in code points.

    Args:
        tokens: none of which holds the first character of any of them again, so that they cannot overlap.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        super().__init__()
        self._openings = np.array(sorted({ord(token[0]) for token in tokens}))  # (o,)
        self._lengths = np.array([len(token) for token in tokens])  # (k,)
        self._patterns = np.array([[*map(ord, t), *[-1] * (self._lengths.max() - len(t))] for t in tokens])  # (k, l)

    def __call__(self, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Where there are special tokens.

        Args:
            codes: int32 (c,), texts one after another, with something between them that is in no token.

        Returns:
            Which token begins at each code point, int64 (c,), counted from 1, and 0 for none; and which code points are
            part of one, bool (c,).
        """
        places = tf.where(tf.reduce_any(codes[:, None] == self._openings, axis=1))  # (p, 1)
        longest = self._patterns.shape[1]
        window = tf.gather(tf.pad(codes, [[0, longest]]), places + tf.range(longest, dtype=tf.int64))  # (p, l)
        equal = tf.reduce_all((window[:, None] == self._patterns) | (self._patterns < 0), axis=-1)  # (p, k)
        hit = tf.where(equal)  # (h, 2)
        begin, token = tf.gather(places[:, 0], hit[:, 0]), hit[:, 1]  # (h,)
        length = tf.shape(codes, tf.int64)  # (1,)
        covered = tf.ragged.range(begin, begin + tf.gather(self._lengths, token)).values[:, None]  # (v, 1)
        inside = tf.scatter_nd(covered, tf.ones_like(covered[:, 0]), length) > 0  # (c,)
        return tf.scatter_nd(begin[:, None], token + 1, length), inside
