"""Splitting of long texts into windows as TensorFlow ops, with the same results as `lmzoo.text.long_texts`.

Letters in shapes: n texts, w windows of all texts, t positions, m words, N tokens of all texts, C tokens of all
windows, W characters of a word, p tokens of a prompt, k outputs of a window.
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
        text: int64 (w,), index of the text of each window, non-decreasing.
        begin: int64 (w,), index of the window's first token in its text.
        count: int64 (w,), number of tokens of the window.
        truncated: bool (n,), whether each text has more windows than allowed.
    """

    text: tf.Tensor
    begin: tf.Tensor
    count: tf.Tensor
    truncated: tf.Tensor


def _place_windows(totals: tf.Tensor, room: tf.Tensor, stride: tf.Tensor, windows: MaxWindows) -> _Placement:
    """Place windows over the tokens of n texts.

    Args:
        totals: int64 (n,), number of tokens of each text.
        room: int64 (n,), number of tokens in a full window of each text.
        stride: int64 (n,), distance between the starts of neighboring windows of each text.
        windows: maximum number of windows of a text, or "auto" for as many as it needs.
    """
    all_counts = 1 + tf.maximum(-((room - totals) // stride), 0)  # (n,), rounded up
    counts = all_counts if windows == "auto" else tf.minimum(all_counts, windows)
    text_indices = repeat(tf.range(tf.size(counts, tf.int64)), counts)  # (w,)
    window_indices = tf.range(tf.size(text_indices, tf.int64)) - tf.gather(
        tf.cumsum(counts, exclusive=True), text_indices
    )
    begins = window_indices * tf.gather(stride, text_indices)
    lengths = tf.minimum(tf.gather(room, text_indices), tf.gather(totals, text_indices) - begins)
    return _Placement(text_indices, begins, lengths, counts < all_counts)


class LongTextGraph(PackingGraph):
    """`lmzoo.text.long_texts.encode_in_windows` as TensorFlow ops.

    Args:
        preprocessor: `lmzoo.text.Preprocessor`.
        windows: maximum number of windows of a text, or "auto" for as many as it needs.
        stride: int, number of tokens from the start of a window to the start of the next; None for windows that do not
            overlap.

    Raises:
        ValueError: If `windows` or `stride` is invalid, or `PackingGraph` refuses `preprocessor`.
    """

    def __init__(self, preprocessor: Preprocessor, windows: MaxWindows, stride: int | None) -> None:
        super().__init__(preprocessor)
        check_windows(windows, stride)
        self._windows = windows
        self._stride = stride

    def __call__(self, texts: tf.Tensor, pairs: tf.Tensor | None = None, prompt: str = "") -> dict[str, tf.Tensor]:
        """Return the features of the windows of single texts or pairs of texts.

        Args:
            texts: `tf.string` (n,), single texts or first texts.
            pairs: `tf.string` (n,), second texts, or None.
            prompt: str to put in front of each first text; it is repeated in each window of the text.

        Returns:
            Dict of the features of the w windows, int32 (w, t) or (w, t, W); `text`, int64 (w,), the index of each
            window's text; `length`, int64 (w,), the window's number of tokens; and `truncated`, bool (n,), whether each
            text was truncated.
        """
        first = self._tokenize(tf.strings.join([prompt, texts]) if prompt else texts)
        second = first[:, :0] if pairs is None else self._tokenize(pairs)
        first_lengths = first.row_lengths()  # (n,)
        second_lengths = second.row_lengths()
        budget = self._sequence_length - self._packing.overhead(pairs is not None)
        splits_first = first_lengths > second_lengths  # (n,)
        shorter_lengths = tf.minimum(first_lengths, second_lengths)
        kept_shorter_lengths = tf.minimum(shorter_lengths, budget // 2)
        prompt_lengths = tf.where(splits_first, self._count_prompt_tokens(first, prompt), 0)
        prompt_lengths = tf.minimum(prompt_lengths, budget - kept_shorter_lengths - 1)
        room = budget - kept_shorter_lengths - prompt_lengths
        stride = room if self._stride is None else tf.minimum(room, self._stride)
        placement = _place_windows(
            tf.maximum(first_lengths, second_lengths) - prompt_lengths, room, stride, self._windows
        )
        text_indices = placement.text
        splits_first, kept_shorter_lengths, prompt_lengths = (
            tf.gather(x, text_indices) for x in (splits_first, kept_shorter_lengths, prompt_lengths)
        )  # (w,)
        begins = prompt_lengths + placement.begin
        zeros = tf.zeros_like(begins)
        first_part = (
            tf.where(splits_first, begins, zeros),
            tf.where(splits_first, placement.count, kept_shorter_lengths),
        )
        second_part = (
            tf.where(splits_first, zeros, begins),
            tf.where(splits_first, kept_shorter_lengths, placement.count),
        )
        start, between, end = self._special(text_indices)
        parts = [start, _slices(first, text_indices, zeros, prompt_lengths), _slices(first, text_indices, *first_part)]
        boundary = None
        if pairs is not None:
            parts += [between, _slices(second, text_indices, *second_part)]
            boundary = prompt_lengths + first_part[1] + start.shape[1] + between.shape[1]
        rows = tf.concat([*parts, end], axis=1)
        is_truncated = placement.truncated | (tf.minimum(shorter_lengths, budget // 2) < shorter_lengths)
        return {
            **self._features(rows, boundary),
            "text": text_indices,
            "length": rows.row_lengths(),
            "truncated": is_truncated,
        }

    def _count_prompt_tokens(self, tokens: tf.RaggedTensor, prompt: str) -> tf.Tensor:
        """Return the length of the common prefix of each text and the prompt, in tokens: int64 (n,)."""
        ids = self._python_tokenizer.tokenize([prompt])[0] if prompt else []
        if not ids:
            return tf.zeros_like(tokens.row_lengths())
        prompt_ids = self._python_tokenizer.as_array(ids, len(ids))  # (p,), or (p, W) for characters
        shape = tf.stack([-1, len(ids), *prompt_ids.shape[1:]])
        is_equal = tokens.to_tensor(self._python_tokenizer.pad_id, shape=shape) == prompt_ids  # (n, p) or (n, p, W)
        if len(prompt_ids.shape) > 1:
            is_equal = tf.reduce_all(is_equal, axis=2)
        in_text = tf.sequence_mask(tokens.row_lengths(), len(ids))  # (n, p)
        return tf.reduce_sum(tf.math.cumprod(tf.cast(is_equal & in_text, tf.int64), axis=1), axis=1)


class LongWordsGraph(WordPackerGraph):
    """`lmzoo.text.long_texts.encode_words_in_windows` as TensorFlow ops, for texts that are strings.

    Args:
        preprocessor: `lmzoo.text.Preprocessor`.
        windows: maximum number of windows of a text, or "auto" for as many as it needs.
        stride: int, number of tokens from the start of a window to the start of the next; None for half a window.

    Raises:
        ValueError: If `windows` or `stride` is invalid, or `PackingGraph` refuses `preprocessor`.
    """

    def __init__(self, preprocessor: Preprocessor, windows: MaxWindows, stride: int | None) -> None:
        super().__init__(preprocessor)
        check_windows(windows, stride)
        self._windows = windows
        self._stride = halve_window(preprocessor) if stride is None else stride

    def __call__(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the features of the windows of texts, `tf.string` (n,), and the words of the texts.

        Returns:
            The dict of `WordPackerGraph`, with windows instead of sequences, and one value of `truncated` per text.
        """
        tokens, words, first_tokens, spans = self._words_of(texts)
        totals = tokens.row_lengths()  # (n,)
        room = tf.zeros_like(totals) + (self._sequence_length - self._packing.overhead(False))
        placement = _place_windows(totals, room, tf.minimum(room, self._stride), self._windows)
        text_starts = tf.gather(tokens.row_starts(), placement.text)  # (w,)
        token_indices = tf.ragged.range(
            text_starts + placement.begin, text_starts + placement.begin + placement.count
        )  # (w, None)
        start, _, end = self._special(placement.text)
        features = self._features(tf.concat([start, tf.gather(tokens.values, token_indices), end], axis=1))
        num_tokens = tf.shape(tokens.values, tf.int64)[0]  # N
        most_context = max_context(token_indices, num_tokens).values  # (C,)
        kept_token_indices = tf.where(most_context, token_indices.values, num_tokens)  # (C,)
        window_indices = tf.math.unsorted_segment_max(
            compute_row_indices(token_indices), kept_token_indices, num_tokens + 1
        )  # (N + 1,)
        window_indices = tf.gather(window_indices, first_tokens)  # (m,), below 0 for truncated words
        is_kept = window_indices >= 0
        window_indices = tf.boolean_mask(window_indices, is_kept)
        window_begins = tf.gather(text_starts + placement.begin, window_indices)  # first token of each word's window
        positions = tf.boolean_mask(first_tokens, is_kept) - window_begins + bool(self._packing.start)
        spans = tf.ragged.boolean_mask(spans, words.with_values(is_kept))
        return {
            **features,
            "place": tf.stack([window_indices, positions], axis=1),
            "span": spans,
            "truncated": placement.truncated,
        }


def _slices(rows: tf.RaggedTensor, row: tf.Tensor, begin: tf.Tensor, count: tf.Tensor) -> tf.RaggedTensor:
    """Return w slices of rows: slice i holds `count[i]` values from index `begin[i]` of row `row[i]`."""
    start = tf.gather(rows.row_starts(), row) + begin
    return tf.gather(rows.values, tf.ragged.range(start, start + count))


def pool_windows(outputs: tf.Tensor, text: tf.Tensor, length: tf.Tensor, pooling: str) -> tf.Tensor:
    """Return the mean or maximum of outputs over the windows of each text, like `WindowedTexts.pool`: (n, k).

    The mean is weighted by `length`.

    Args:
        outputs: float (w, k), outputs of the windows.
        text: int64 (w,), index of the text of each window, non-decreasing.
        length: int64 (w,), number of tokens of each window.
        pooling: "mean" or "max".
    """
    if pooling == "max":
        return tf.math.segment_max(outputs, text)
    weights = tf.cast(tf.maximum(length, 1), outputs.dtype)  # (w,)
    fractions = weights / tf.gather(tf.math.segment_sum(weights, text), text)
    return tf.math.segment_sum(outputs * fractions[:, None], text)
