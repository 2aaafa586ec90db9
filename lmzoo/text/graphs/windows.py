"""`lmzoo.text.windows` as TensorFlow ops."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from lmzoo.text.graphs.preprocessor import PackingGraph, head
from lmzoo.text.preprocessor import Preprocessor


class Windows(NamedTuple):
    """The counterpart of `lmzoo.text.EncodedWindows`: w windows of n examples, N tokens of all contexts.

    Attributes:
        features: the features of packed sequences, each (w, t), or (w, t, W).
        lengths: int64 (w,), tokens of each sequence.
        example: int64 (w,), the example that each window belongs to, rising.
        second: int64 (w,), index within the sequence of the window's first token.
        begin: int64 (w,), index of this token among those of all contexts.
        max_context: bool (w, None), whether each token of a window has the most context in this window.
        spans: int32 (N, 2), the characters of its context that each token came from.
        truncated: bool (n,), whether the question was truncated.
    """

    features: dict[str, tf.Tensor]
    lengths: tf.Tensor
    example: tf.Tensor
    second: tf.Tensor
    begin: tf.Tensor
    max_context: tf.RaggedTensor
    spans: tf.Tensor
    truncated: tf.Tensor


class WindowGraph(PackingGraph):
    """`lmzoo.text.windows.encode_windows` as TensorFlow ops.

    Raises:
        ValueError: if the longest question leaves no room for a context.
    """

    def __init__(self, preprocessor: Preprocessor, doc_stride: int, max_question_length: int) -> None:
        super().__init__(preprocessor)
        self._room = self._sequence_length - self._packing.overhead(True)
        self._stride, self._longest = doc_stride, max_question_length
        if self._room <= max_question_length:
            raise ValueError(
                f"Questions of {max_question_length} tokens (`max_question_length`) leave no room for their context in "
                f"{self._sequence_length} (`sequence_length`). Raise that, or lower `max_question_length`."
            )

    def __call__(self, questions: tf.Tensor, contexts: tf.Tensor) -> Windows:
        """Return windows of contexts next to their questions; both are `tf.string` (n,)."""
        asked = self._tokenizer(questions)  # (n, None), or (n, None, W)
        read, spans = self._tokenizer.with_offsets(contexts)
        length, total = asked.row_lengths(), read.row_lengths()  # (n,)
        kept = tf.minimum(length, self._longest)
        room = self._room - kept
        stride = tf.minimum(room, self._stride)
        number = 1 + tf.maximum(-((room - total) // stride), 0)  # (n,), windows of each
        example = tf.repeat(tf.range(tf.size(number, tf.int64)), number)  # (w,)
        index = tf.range(tf.size(example, tf.int64)) - tf.gather(tf.cumsum(number, exclusive=True), example)
        begin = index * tf.gather(stride, example)
        count = tf.minimum(tf.gather(room, example), tf.gather(total, example) - begin)
        begin += tf.gather(read.row_starts(), example)
        token = tf.ragged.range(begin, begin + count)  # (w, None)
        start, between, end = self._special(example)
        question = tf.gather(head(asked, kept), example)
        rows = tf.concat([start, question, between, tf.gather(read.values, token), end], axis=1)
        second = tf.gather(kept, example) + start.shape[1] + between.shape[1]
        most = _max_context(token, tf.shape(read.values, tf.int64)[0])
        features = self._features(rows, second)
        return Windows(features, rows.row_lengths(), example, second, begin, most, spans.values, kept < length)


def _max_context(token: tf.RaggedTensor, size: tf.Tensor) -> tf.RaggedTensor:
    """See `lmzoo.text.EncodedWindows.max_context`; bool (w, None)."""
    window = token.value_rowids()  # (C,)
    count = tf.gather(token.row_lengths(), window)
    left = token.values - tf.gather(token.values, tf.gather(token.row_starts(), window))
    score = tf.cast(tf.minimum(left, count - 1 - left), tf.float64) + 0.01 * tf.cast(count, tf.float64)
    best = tf.gather(tf.math.unsorted_segment_max(score, token.values, size), token.values) == score
    first = tf.math.unsorted_segment_min(tf.where(best, window, token.nrows()), token.values, size)
    return token.with_values(tf.gather(first, token.values) == window)
