"""Ranking of answers as TensorFlow ops, with the same results as `lmzoo.text.answer_ranking`."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

from lmzoo.text.answer_ranking import is_mark
from lmzoo.text.graphs.token_ops import ends_in_bytes, find_first_from, find_last_up_to
from lmzoo.text.graphs.windows import Windows

_WHITESPACE = np.array([code for code in range(sys.maxunicode + 1) if chr(code).isspace()], "int32")


class AnswerGraph:
    """Choice of the best answers in TensorFlow ops, with the same results as `lmzoo.text.answer_ranking`.

    Shapes: n examples, w windows, t positions, m answer lengths, a possible answers.

    Args:
        n_best: int, number of starts and ends per window, and of answers, to consider.
        max_answer_length: int, maximum number of tokens of an answer.
        null_score_threshold: float, threshold for no answer: there is no answer if the null score exceeds the best
            score by more than this. None if every question has an answer.
    """

    def __init__(self, n_best: int, max_answer_length: int, null_score_threshold: float | None) -> None:
        self._n_best = n_best
        self._longest = max_answer_length
        self._threshold = null_score_threshold
        marks = np.array([is_mark(chr(code)) for code in range(sys.maxunicode + 1)])
        # Starts and ends of runs of marks.
        self._mark_edges = np.flatnonzero(np.diff(marks, prepend=False)).astype("int32")

    def __call__(self, contexts: tf.Tensor, logits: tf.Tensor, windows: Windows) -> dict[str, tf.Tensor]:
        """Return the best answer to each question.

        Args:
            contexts: `tf.string` (n,), the context of each question.
            logits: float32 (w, t, 2), start and end logits of the windows.
            windows: `Windows` of the contexts.

        Returns:
            `answer`, `tf.string` (n,), `start` and `end`, int32 (n,), in characters of the context, and `score`,
            float32 (n,); "", 0 and 0 for no answer. See `lmzoo.models.QuestionAnswerer.answer`.
        """
        num_questions = tf.size(contexts, tf.int64)
        context_texts = _Contexts(contexts, self._mark_edges)
        valid_pairs, best_pairs = self._find_valid_and_best_pairs(logits, windows)
        columns = self._read(best_pairs, context_texts, logits, windows)
        if self._threshold is None:  # there must be an answer
            has_answer = tf.math.unsorted_segment_sum(tf.ones_like(columns[0]), columns[0], num_questions) > 0  # (n,)
            other_pairs = valid_pairs & ~tf.gather(has_answer, windows.example)[:, None, None]
            other_columns = self._read(other_pairs, context_texts, logits, windows)
            columns = [tf.concat(parts, axis=0) for parts in zip(columns, other_columns, strict=True)]
        examples, scores, answer_texts, starts, ends = columns
        order = tf.argsort(scores, direction="DESCENDING", stable=True)
        order = tf.gather(order, tf.argsort(tf.gather(examples, order), stable=True))
        scores, examples, answer_texts, starts, ends = (
            tf.gather(x, order) for x in (scores, examples, answer_texts, starts, ends)
        )
        # Keep the first of several answers with the same text.
        distinct_answers, text_indices = tf.unique(tf.strings.join([tf.strings.as_string(examples), answer_texts], ":"))
        first_indices = tf.math.unsorted_segment_min(
            tf.range(tf.size(text_indices)), text_indices, tf.size(distinct_answers)
        )
        scores, examples, answer_texts, starts, ends = (
            tf.gather(x, first_indices) for x in (scores, examples, answer_texts, starts, ends)
        )
        ranked_scores = tf.RaggedTensor.from_value_rowids(scores, examples, num_questions, validate=False)
        null_scores = tf.math.segment_min(
            tf.reduce_sum(tf.cast(logits[:, 0], tf.float64), axis=-1), windows.example
        )  # (n,)
        is_answered, probabilities = self._choose(ranked_scores[:, : self._n_best], null_scores)
        # Without an answer: the index after the last answer, where the values for no answer are.
        best_indices = tf.where(is_answered, ranked_scores.row_starts(), tf.size(scores, tf.int64))  # (n,)
        columns_and_defaults = {"answer": (answer_texts, ""), "start": (starts, 0), "end": (ends, 0)}
        answers = {
            name: tf.gather(tf.concat([x, [default]], axis=0), best_indices)
            for name, (x, default) in columns_and_defaults.items()
        }
        return {**answers, "score": tf.cast(probabilities, tf.float32)}

    def _find_valid_and_best_pairs(self, logits: tf.Tensor, windows: Windows) -> tuple[tf.Tensor, tf.Tensor]:
        """Return masks of the valid pairs, and of the valid pairs with the best starts and ends: bool (w, t, m).

        A pair is indexed by its window, the position of its first token in the sequence, and the number of tokens after
        the first.
        """
        length = tf.shape(logits, tf.int64)[1]  # t
        positions = tf.range(length)  # (t,)
        further_tokens = tf.range(tf.minimum(length, self._longest))  # (m,), from the first to the last token
        num_tokens = windows.max_context.row_lengths()[:, None]  # (w, 1)
        window_positions = positions - windows.second[:, None]  # (w, t), in the window
        has_most_context = windows.max_context.to_tensor(False, shape=tf.stack([-1, length]))  # (w, t)
        has_most_context = tf.gather(has_most_context, tf.clip_by_value(window_positions, 0, length - 1), batch_dims=1)
        is_valid_start = has_most_context & (window_positions >= 0) & (window_positions < num_tokens)  # (w, t)
        is_valid = is_valid_start[:, :, None] & (
            (window_positions[:, :, None] + further_tokens) < num_tokens[:, :, None]
        )  # (w, t, m)
        scores = tf.where((positions < windows.lengths[:, None])[:, :, None], logits, -np.inf)  # (w, t, 2)
        _, best_positions = tf.math.top_k(
            tf.transpose(scores, [0, 2, 1]), tf.minimum(tf.cast(length, tf.int32), self._n_best)
        )
        is_best = tf.reduce_any(
            tf.one_hot(best_positions, tf.cast(length, tf.int32), True, False, dtype=tf.bool), axis=2
        )  # (w, 2, t)
        is_best_end = tf.gather(
            tf.pad(is_best[:, 1], [[0, 0], [0, self._longest]]), positions[:, None] + further_tokens, axis=1
        )  # (w, t, m)
        return is_valid, is_valid & is_best[:, 0, :, None] & is_best_end

    def _read(self, pairs: tf.Tensor, texts: _Contexts, logits: tf.Tensor, windows: Windows) -> list[tf.Tensor]:
        """Extract the answers of pairs of start and end, except for empty answers.

        Args:
            pairs: bool (w, t, m), which pairs to extract.
            texts: the contexts.
            logits: float32 (w, t, 2), start and end logits of the windows.
            windows: `Windows` of the contexts.

        Returns:
            Five tensors (a,): the example, score, text, start and end of each answer.
        """
        window_indices, first_positions, num_further = tf.unstack(tf.where(pairs), num=3, axis=1)  # (a,)
        logits = tf.cast(logits, tf.float64)
        scores = tf.gather_nd(logits[:, :, 0], tf.stack([window_indices, first_positions], axis=1))
        scores += tf.gather_nd(logits[:, :, 1], tf.stack([window_indices, first_positions + num_further], axis=1))
        example_indices = tf.gather(windows.example, window_indices)
        # Indices among the tokens of all contexts.
        token_indices = tf.gather(windows.begin - windows.second, window_indices) + first_positions
        starts = tf.gather(windows.spans[:, 0], token_indices)
        ends = tf.gather(windows.spans[:, 1], token_indices + num_further)
        answer_texts, starts, ends = texts.cut(example_indices, starts, ends)
        return [tf.boolean_mask(x, starts < ends) for x in (example_indices, scores, answer_texts, starts, ends)]

    def _choose(self, ranked_scores: tf.RaggedTensor, null_scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Choose between the best answer to each question and no answer.

        Args:
            ranked_scores: float64 (n, None), scores of the answers, at most `n_best` per question, best first.
            null_scores: float64 (n,), scores for no answer.

        Returns:
            Whether each question has an answer, bool (n,), and the probability of this choice, float64 (n,).
        """
        scores = ranked_scores.to_tensor(-np.inf, shape=[None, self._n_best])  # (n, n_best)
        null_scores = null_scores[:, None]
        if self._threshold is None:
            is_answered = scores[:, 0] > -np.inf
            return is_answered, tf.where(is_answered, tf.nn.softmax(scores)[:, 0], 1.0)
        num_above_null = tf.reduce_sum(tf.cast(scores >= null_scores, tf.int32), axis=1, keepdims=True)  # (n, 1)
        list_length = tf.where(num_above_null < self._n_best, max(1, self._n_best - 1), self._n_best)
        scores = tf.where(tf.range(self._n_best) < list_length, scores, -np.inf)
        is_answered = (scores[:, 0] > -np.inf) & (null_scores[:, 0] - scores[:, 0] <= self._threshold)
        probabilities = tf.nn.softmax(tf.concat([scores, null_scores], axis=1))  # (n, n_best + 1)
        return is_answered, tf.where(is_answered, probabilities[:, 0], probabilities[:, -1])


class _Contexts:
    """Contexts as arrays of characters, to extract answers from.

    Args:
        contexts: `tf.string` (n,), with h characters in total.
        mark_edges: int array, the code points at which runs of combining marks begin and end, alternately.
    """

    def __init__(self, contexts: tf.Tensor, mark_edges: np.ndarray) -> None:
        self._texts = tf.strings.unicode_transcode(contexts, "UTF-8", "UTF-8", errors="replace")
        self._rows = tf.strings.unicode_decode(self._texts, "UTF-8")  # (n, None)
        codes = self._rows.values  # (h,)
        self._is_letter = tf.searchsorted(mark_edges, codes, side="right") % 2 == 0  # (h,)
        self._is_solid = ~tf.reduce_any(codes[:, None] == _WHITESPACE, axis=1)  # (h,)
        self._byte_offsets = tf.concat([[0], ends_in_bytes(codes)], axis=0)  # (h + 1,)

    def cut(
        self, example_indices: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Extract parts of texts, without whitespace around them and with all combining marks of their letters.

        Args:
            example_indices: int64 (a,), index of the text of each part.
            starts: int32 (a,), offset of the first character of each part.
            ends: int32 (a,), offset after the last character of each part.

        Returns:
            The parts, `tf.string` (a,), and their adjusted starts and ends, int32 (a,).
        """
        text_starts, text_ends = (
            tf.gather(x, example_indices) for x in (self._rows.row_starts(), self._rows.row_limits())
        )  # (a,)
        starts, ends = (text_starts + tf.cast(x, tf.int64) for x in (starts, ends))
        last_letters = find_last_up_to(self._is_letter, tf.minimum(starts, text_ends - 1))
        starts = tf.where(starts < text_ends, tf.maximum(last_letters, text_starts), starts)
        ends = tf.where(ends > text_starts, tf.minimum(find_first_from(self._is_letter, ends), text_ends), ends)
        starts = tf.minimum(find_first_from(self._is_solid, starts), ends)
        ends = tf.maximum(find_last_up_to(self._is_solid, ends - 1) + 1, starts)
        first_bytes, end_bytes = (
            tf.gather(self._byte_offsets, x) - tf.gather(self._byte_offsets, text_starts) for x in (starts, ends)
        )
        answer_texts = tf.strings.substr(tf.gather(self._texts, example_indices), first_bytes, end_bytes - first_bytes)
        return answer_texts, tf.cast(starts - text_starts, tf.int32), tf.cast(ends - text_starts, tf.int32)
