"""Splitting of long contexts into windows in TensorFlow ops, with the same results as `lmzoo.text.windows`."""

from __future__ import annotations

from typing import NamedTuple

import keras
import tensorflow as tf

from lmzoo.text.graphs.preprocessor import PackingGraph, head
from lmzoo.text.preprocessor import Preprocessor

_CHUNK_SIZE = 32  # number of windows that a model reads at a time


class Windows(NamedTuple):
    """Graph counterpart of `lmzoo.text.EncodedWindows`: w windows of n examples, N tokens in all contexts.

    Attributes:
        features: dict of features of the sequences, each (w, t), or (w, t, W) if tokens are words of W characters.
        lengths: int64 (w,), number of tokens of each sequence.
        example: int64 (w,), index of the example that each window belongs to, non-decreasing.
        second: int64 (w,), index within the sequence of the window's first token.
        begin: int64 (w,), index of the window's first token among the tokens of all contexts.
        max_context: bool (w, None), whether each token of a window has the most context in this window.
        spans: int32 (N, 2), offsets of each token in its context.
        truncated: bool (n,), whether the question of each example was truncated.
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

    Args:
        preprocessor: `lmzoo.text.Preprocessor`.
        doc_stride: int, number of tokens from the beginning of a window to the beginning of the next.
        max_question_length: int, maximum number of tokens of a question.

    Raises:
        ValueError: If questions of `max_question_length` tokens leave no room for a context, the tokenizer does not
            compute offsets in graphs, or `PackingGraph` refuses `preprocessor`.
    """

    def __init__(self, preprocessor: Preprocessor, doc_stride: int, max_question_length: int) -> None:
        super().__init__(preprocessor)
        tokenizer = preprocessor.tokenizer
        if not tokenizer.has_offsets_in_graphs:
            raise ValueError(
                f"{type(tokenizer).__name__} has no offsets in TensorFlow graphs, so a SavedModel cannot find answers. "
                "Export an ONNX or LiteRT file, or use `answer` in Python."
            )
        self._room = self._sequence_length - self._packing.overhead(True)
        self._stride = doc_stride
        self._longest = max_question_length
        if self._room <= max_question_length:
            raise ValueError(
                f"Questions of {max_question_length} tokens (`max_question_length`) leave no room for their context in "
                f"{self._sequence_length} (`sequence_length`). Raise that, or lower `max_question_length`."
            )

    def __call__(self, questions: tf.Tensor, contexts: tf.Tensor) -> Windows:
        """Split contexts into windows, and pack each window with the question about its context.

        Args:
            questions: `tf.string` (n,), one question about each context.
            contexts: `tf.string` (n,), the contexts to split.
        """
        question_tokens = self._tokenizer(questions)  # (n, None), or (n, None, W)
        context_tokens, spans = self._tokenizer.with_offsets(contexts)
        question_lengths = question_tokens.row_lengths()  # (n,)
        context_lengths = context_tokens.row_lengths()  # (n,)
        kept_lengths = tf.minimum(question_lengths, self._longest)
        room = self._room - kept_lengths
        stride = tf.minimum(room, self._stride)
        num_windows = 1 + tf.maximum(-((room - context_lengths) // stride), 0)  # (n,), windows of each example
        example_indices = tf.repeat(tf.range(tf.size(num_windows, tf.int64)), num_windows)  # (w,)
        window_indices = tf.range(tf.size(example_indices, tf.int64)) - tf.gather(
            tf.cumsum(num_windows, exclusive=True), example_indices
        )
        begins = window_indices * tf.gather(stride, example_indices)
        window_lengths = tf.minimum(
            tf.gather(room, example_indices), tf.gather(context_lengths, example_indices) - begins
        )
        begins += tf.gather(context_tokens.row_starts(), example_indices)
        token_indices = tf.ragged.range(begins, begins + window_lengths)  # (w, None)
        start, between, end = self._special(example_indices)
        questions_by_window = tf.gather(head(question_tokens, kept_lengths), example_indices)
        rows = tf.concat(
            [start, questions_by_window, between, tf.gather(context_tokens.values, token_indices), end], axis=1
        )
        second = tf.gather(kept_lengths, example_indices) + start.shape[1] + between.shape[1]
        has_most_context = max_context(token_indices, tf.shape(context_tokens.values, tf.int64)[0])
        features = self._features(rows, second)
        return Windows(
            features,
            rows.row_lengths(),
            example_indices,
            second,
            begins,
            has_most_context,
            spans.values,
            kept_lengths < question_lengths,
        )


def max_context(token: tf.RaggedTensor, size: tf.Tensor) -> tf.RaggedTensor:
    """Return, for each token of each window, whether this window gives it the most context: bool (w, None).

    Args:
        token: int64 (w, None), indices of the tokens of each window among the tokens of all contexts or texts.
        size: int64 (), number of tokens of all contexts or texts.
    """
    window_indices = token.value_rowids()  # (C,)
    window_lengths = tf.gather(token.row_lengths(), window_indices)
    left_context = token.values - tf.gather(token.values, tf.gather(token.row_starts(), window_indices))
    scores = tf.cast(tf.minimum(left_context, window_lengths - 1 - left_context), tf.float64) + 0.01 * tf.cast(
        window_lengths, tf.float64
    )
    is_best = tf.gather(tf.math.unsorted_segment_max(scores, token.values, size), token.values) == scores
    best_windows = tf.math.unsorted_segment_min(tf.where(is_best, window_indices, token.nrows()), token.values, size)
    return token.with_values(tf.gather(best_windows, token.values) == window_indices)


def compute_in_chunks(model: keras.Model, features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Return a model's outputs for the features of w windows, computed for 32 windows at a time: (w, ...)."""
    num_windows = tf.shape(next(iter(features.values())))[0]
    num_chunks = tf.maximum((num_windows + _CHUNK_SIZE - 1) // _CHUNK_SIZE, 1)

    def add_chunk(index: tf.Tensor, outputs: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        begin = index * _CHUNK_SIZE
        chunk = {name: x[begin : begin + _CHUNK_SIZE] for name, x in features.items()}
        return index + 1, outputs.write(index, model(chunk, training=False))

    outputs = tf.TensorArray(
        model.output.dtype, num_chunks, infer_shape=False, element_shape=[None, *model.output.shape[1:]]
    )
    _, outputs = tf.while_loop(lambda index, _: index < num_chunks, add_chunk, [0, outputs])
    return outputs.concat()
