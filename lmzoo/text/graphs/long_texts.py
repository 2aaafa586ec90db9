"""Encoding of texts of any length in windows, in TensorFlow ops, with the same results as `lmzoo.text.long_texts`.

Letters in shape comments: n texts, w windows of all texts, t positions, m words, N tokens of all texts, C tokens of all
windows, W characters of a word.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from lmzoo.text.graphs.preprocessor import PackingGraph, WordPackerGraph
from lmzoo.text.graphs.token_ops import compute_row_indices, repeat
from lmzoo.text.graphs.windows import max_context
from lmzoo.text.long_texts import MaxWindows, check_windows, halve_window
from lmzoo.text.preprocessor import Preprocessor


class _Placement(NamedTuple):
    """Windows over the tokens of texts.

    Attributes:
        text: int64 (w,), index of the text of each window, rising.
        begin: int64 (w,), index of the window's first token in its text.
        count: int64 (w,), number of tokens of the window.
        truncated: bool (n,), whether each text has more windows than allowed.
    """

    text: tf.Tensor
    begin: tf.Tensor
    count: tf.Tensor
    truncated: tf.Tensor


def _place_windows(totals: tf.Tensor, room: tf.Tensor, stride: tf.Tensor, windows: MaxWindows) -> _Placement:
    """Place windows over texts; all arguments are int64 (n,), except for the maximum number of windows or "auto"."""
    all_counts = 1 + tf.maximum(-((room - totals) // stride), 0)  # (n,), rounded up
    counts = all_counts if windows == "auto" else tf.minimum(all_counts, windows)
    text = repeat(tf.range(tf.size(counts, tf.int64)), counts)  # (w,)
    index = tf.range(tf.size(text, tf.int64)) - tf.gather(tf.cumsum(counts, exclusive=True), text)
    begin = index * tf.gather(stride, text)
    count = tf.minimum(tf.gather(room, text), tf.gather(totals, text) - begin)
    return _Placement(text, begin, count, counts < all_counts)


class LongTextGraph(PackingGraph):
    """`lmzoo.text.long_texts.encode_in_windows` as TensorFlow ops.

    Args:
        preprocessor: `lmzoo.text.Preprocessor`.
        windows: maximum number of windows of a text, or "auto".
        stride: int, number of tokens from one window to the next; None for windows that do not overlap.
    """

    def __init__(self, preprocessor: Preprocessor, windows: MaxWindows, stride: int | None) -> None:
        super().__init__(preprocessor)
        check_windows(windows, stride)
        self._windows = windows
        self._stride = stride

    def __call__(self, texts: tf.Tensor, pairs: tf.Tensor | None = None, prompt: str = "") -> dict[str, tf.Tensor]:
        """Return the features of windows of texts, or of texts and pairs, each `tf.string` (n,).

        Args:
            texts: `tf.string` (n,).
            pairs: `tf.string` (n,), second texts, or None.
            prompt: str, prefix of each first text, which is repeated in each of its windows.

        Returns:
            The features of the w windows, int32 (w, t) or (w, t, W); `text`, int64 (w,), the index of each window's
            text; `length`, int64 (w,), the window's number of tokens; and `truncated`, bool (n,).
        """
        first = self._tokenize(tf.strings.join([prompt, texts]) if prompt else texts)
        second = first[:, :0] if pairs is None else self._tokenize(pairs)
        length = first.row_lengths()  # (n,)
        second_length = second.row_lengths()
        budget = self._sequence_length - self._packing.overhead(pairs is not None)
        splits_first = length > second_length  # (n,)
        shorter = tf.minimum(length, second_length)
        shorter_length = tf.minimum(shorter, budget // 2)
        lead = tf.where(splits_first, self._count_prompt_tokens(first, prompt), 0)
        lead = tf.minimum(lead, budget - shorter_length - 1)
        room = budget - shorter_length - lead
        stride = room if self._stride is None else tf.minimum(room, self._stride)
        placed = _place_windows(tf.maximum(length, second_length) - lead, room, stride, self._windows)
        text = placed.text
        splits_first, shorter_length, lead = (tf.gather(x, text) for x in (splits_first, shorter_length, lead))  # (w,)
        begin = lead + placed.begin
        zero = tf.zeros_like(begin)
        first_part = tf.where(splits_first, begin, zero), tf.where(splits_first, placed.count, shorter_length)
        second_part = tf.where(splits_first, zero, begin), tf.where(splits_first, shorter_length, placed.count)
        start, between, end = self._special(text)
        parts = [start, _slices(first, text, zero, lead), _slices(first, text, *first_part)]
        boundary = None
        if pairs is not None:
            parts += [between, _slices(second, text, *second_part)]
            boundary = lead + first_part[1] + start.shape[1] + between.shape[1]
        rows = tf.concat([*parts, end], axis=1)
        truncated = placed.truncated | (tf.minimum(shorter, budget // 2) < shorter)
        return {**self._features(rows, boundary), "text": text, "length": rows.row_lengths(), "truncated": truncated}

    def _count_prompt_tokens(self, tokens: tf.RaggedTensor, prompt: str) -> tf.Tensor:
        """Return how many of the prompt's tokens each text begins with, int64 (n,)."""
        ids = self._python_tokenizer.tokenize([prompt])[0] if prompt else []
        if not ids:
            return tf.zeros_like(tokens.row_lengths())
        expected = self._python_tokenizer.as_array(ids, len(ids))  # (p,), or (p, W) for characters
        shape = tf.stack([-1, len(ids), *expected.shape[1:]])
        equal = tokens.to_tensor(self._python_tokenizer.pad_id, shape=shape) == expected  # (n, p) or (n, p, W)
        if len(expected.shape) > 1:
            equal = tf.reduce_all(equal, axis=2)
        in_text = tf.sequence_mask(tokens.row_lengths(), len(ids))  # (n, p)
        return tf.reduce_sum(tf.math.cumprod(tf.cast(equal & in_text, tf.int64), axis=1), axis=1)


class LongWordsGraph(WordPackerGraph):
    """`lmzoo.text.long_texts.encode_words_in_windows` as TensorFlow ops, for texts that are strings.

    Args:
        preprocessor: `lmzoo.text.Preprocessor`.
        windows: maximum number of windows of a text, or "auto".
        stride: int, number of tokens from one window to the next; None for half a window.
    """

    def __init__(self, preprocessor: Preprocessor, windows: MaxWindows, stride: int | None) -> None:
        super().__init__(preprocessor)
        check_windows(windows, stride)
        self._windows = windows
        self._stride = halve_window(preprocessor) if stride is None else stride

    def __call__(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the features of the windows of texts, `tf.string` (n,), and their words; see `WordPackerGraph`."""
        tokens, words, first, span = self._words_of(texts)
        totals = tokens.row_lengths()  # (n,)
        room = tf.zeros_like(totals) + (self._sequence_length - self._packing.overhead(False))
        placed = _place_windows(totals, room, tf.minimum(room, self._stride), self._windows)
        text_start = tf.gather(tokens.row_starts(), placed.text)  # (w,)
        token = tf.ragged.range(text_start + placed.begin, text_start + placed.begin + placed.count)  # (w, None)
        start, _, end = self._special(placed.text)
        features = self._features(tf.concat([start, tf.gather(tokens.values, token), end], axis=1))
        total = tf.shape(tokens.values, tf.int64)[0]  # N
        most_context = max_context(token, total).values  # (C,)
        index = tf.where(most_context, token.values, total)  # (C,)
        window = tf.math.unsorted_segment_max(compute_row_indices(token), index, total + 1)  # (N + 1,)
        window = tf.gather(window, first)  # (m,), below 0 for truncated words
        is_kept = window >= 0
        window = tf.boolean_mask(window, is_kept)
        begin = tf.gather(text_start + placed.begin, window)  # first token of each word's window
        position = tf.boolean_mask(first, is_kept) - begin + bool(self._packing.start)
        span = tf.ragged.boolean_mask(span, words.with_values(is_kept))
        return {
            **features,
            "place": tf.stack([window, position], axis=1),
            "span": span,
            "truncated": placed.truncated,
        }


def _slices(rows: tf.RaggedTensor, row: tf.Tensor, begin: tf.Tensor, count: tf.Tensor) -> tf.RaggedTensor:
    """Return `count` values, starting at index `begin`, of each row with an index in `row`; all are int64 (w,)."""
    start = tf.gather(rows.row_starts(), row) + begin
    return tf.gather(rows.values, tf.ragged.range(start, start + count))


def pool_windows(outputs: tf.Tensor, text: tf.Tensor, length: tf.Tensor, pooling: str) -> tf.Tensor:
    """Return the mean or maximum over the windows of each text, (n, k); see `WindowedTexts.pool`.

    Args:
        outputs: float (w, k), outputs of the windows.
        text: int64 (w,), index of the text of each window, rising.
        length: int64 (w,), number of tokens of each window.
        pooling: "mean" or "max".
    """
    if pooling == "max":
        return tf.math.segment_max(outputs, text)
    weights = tf.cast(tf.maximum(length, 1), outputs.dtype)  # (w,)
    shares = weights / tf.gather(tf.math.segment_sum(weights, text), text)
    return tf.math.segment_sum(outputs * shares[:, None], text)
