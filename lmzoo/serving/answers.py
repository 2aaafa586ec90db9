"""From logits of windows to answers in their contexts, as TensorFlow ops."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from lmzoo.tasks.answer_decoding import is_mark
from lmzoo.text.graph_ops import ends_in_bytes
from lmzoo.text.windows_graph import Windows

_BLANKS = np.array([code for code in range(sys.maxunicode + 1) if chr(code).isspace()], "int32")


class AnswerGraph:
    """`lmzoo.tasks.answer_decoding` as TensorFlow ops: the best answer to each question.

    n examples, w windows, t positions, a possible answers.

    Args:
        n_best: int, how many starts and ends of a window, and then answers of an example, are considered.
        max_answer_length: int, tokens.
        null_score_threshold: float, or None if there always is an answer.
    """

    def __init__(self, n_best: int, max_answer_length: int, null_score_threshold: float | None) -> None:
        self._n_best, self._longest, self._threshold = n_best, max_answer_length, null_score_threshold
        marks = np.array([is_mark(chr(code)) for code in range(sys.maxunicode + 1)])
        self._mark_edges = np.flatnonzero(np.diff(marks, prepend=False)).astype("int32")  # where marks begin and end

    def __call__(self, contexts: tf.Tensor, logits: tf.Tensor, windows: Windows) -> dict[str, tf.Tensor]:
        """The best answers.

        Args:
            contexts: `tf.string` (n,).
            logits: float32 (w, t, 2), of starts and ends.
            windows: the windows that the logits are of.

        Returns:
            `answer`, `tf.string` (n,), `start` and `end`, int32 (n,), by characters of the context, and `score`,
            float32 (n,); "", 0 and 0 for no answer. See `lmzoo.models.QuestionAnswerer.answer`.
        """
        count = tf.size(contexts, tf.int64)
        example, first, last, score = self._candidates(logits, windows, count)
        text, start, end = self._cut(
            contexts, example, *(tf.gather(windows.spans[:, k], x) for k, x in enumerate((first, last)))
        )
        order = tf.argsort(score, direction="DESCENDING", stable=True)
        order = tf.gather(order, tf.argsort(tf.gather(example, order), stable=True))
        order = tf.boolean_mask(order, tf.gather(start < end, order))
        score, example, text, start, end = (tf.gather(x, order) for x in (score, example, text, start, end))
        # Of several answers with the same text the first stays.
        different, number = tf.unique(tf.strings.join([tf.strings.as_string(example), text], ":"))
        first = tf.math.unsorted_segment_min(tf.range(tf.size(number)), number, tf.size(different))
        score, example, text, start, end = (tf.gather(x, first) for x in (score, example, text, start, end))
        ranked = tf.RaggedTensor.from_value_rowids(score, example, count, validate=False)
        null = tf.math.segment_min(tf.reduce_sum(tf.cast(logits[:, 0], tf.float64), axis=-1), windows.example)  # (n,)
        given, probability = self._choose(ranked[:, : self._n_best], null)
        best = tf.where(given, ranked.row_starts(), tf.size(score, tf.int64))  # (n,); where nothing is, behind all
        nothing = {"answer": (text, ""), "start": (start, 0), "end": (end, 0)}
        answers = {name: tf.gather(tf.concat([x, [none]], axis=0), best) for name, (x, none) in nothing.items()}
        return {**answers, "score": tf.cast(probability, tf.float32)}

    def _candidates(self, logits: tf.Tensor, windows: Windows, count: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Example, first and last of the tokens of all contexts, and score of each pair that is kept: (a,)."""
        length = tf.shape(logits, tf.int64)[1]  # t
        at = tf.range(length)  # (t,)
        more = tf.range(tf.minimum(length, self._longest))  # (m,), from the first to the last token
        words = windows.max_context.row_lengths()[:, None]  # (w, 1)
        place = at - windows.second[:, None]  # (w, t), in the window
        most = windows.max_context.to_tensor(False, shape=tf.stack([-1, length]))  # (w, t)
        most = tf.gather(most, tf.clip_by_value(place, 0, length - 1), batch_dims=1)
        starts = most & (place >= 0) & (place < words)  # (w, t)
        valid = starts[:, :, None] & ((place[:, :, None] + more) < words[:, :, None])  # (w, t, m)
        scores = tf.where((at < windows.lengths[:, None])[:, :, None], logits, -np.inf)  # (w, t, 2)
        _, best = tf.math.top_k(tf.transpose(scores, [0, 2, 1]), tf.minimum(tf.cast(length, tf.int32), self._n_best))
        is_best = tf.reduce_any(
            tf.one_hot(best, tf.cast(length, tf.int32), True, False, dtype=tf.bool), axis=2
        )  # (w, 2, t)
        ends = tf.gather(tf.pad(is_best[:, 1], [[0, 0], [0, self._longest]]), at[:, None] + more, axis=1)  # (w, t, m)
        kept = valid & is_best[:, 0, :, None] & ends
        if self._threshold is None:  # there has to be an answer
            some = tf.cast(tf.reduce_any(kept, axis=[1, 2]), tf.int32)
            none = tf.math.unsorted_segment_max(some, windows.example, count) < 1  # (n,)
            kept |= valid & tf.gather(none, windows.example)[:, None, None]
        window, start, further = tf.unstack(tf.where(kept), num=3, axis=1)  # (a,)
        logits = tf.cast(logits, tf.float64)
        score = tf.gather_nd(logits[:, :, 0], tf.stack([window, start], axis=1))
        score += tf.gather_nd(logits[:, :, 1], tf.stack([window, start + further], axis=1))
        first = tf.gather(windows.begin - windows.second, window) + start
        return tf.gather(windows.example, window), first, first + further, score

    def _cut(
        self, contexts: tf.Tensor, example: tf.Tensor, start: tf.Tensor, end: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Texts, `tf.string` (a,), without whitespace around them, letters with all of their marks; and where they are.

        Args:
            contexts: `tf.string` (n,).
            example: int64 (a,).
            start: int32 (a,), where the first token begins, by characters of its context.
            end: int32 (a,), where the last token ends.
        """
        contexts = tf.strings.unicode_transcode(contexts, "UTF-8", "UTF-8", errors="replace")
        rows = tf.strings.unicode_decode(contexts, "UTF-8")  # (n, None)
        codes = rows.values  # (h,)
        base, limit = (tf.gather(x, example) for x in (rows.row_starts(), rows.row_limits()))  # (a,)
        start, end = (base + tf.cast(x, tf.int64) for x in (start, end))
        letter = tf.searchsorted(self._mark_edges, codes, side="right") % 2 == 0  # (h,)
        start = tf.where(start < limit, tf.maximum(_last_up_to(letter, tf.minimum(start, limit - 1)), base), start)
        end = tf.where(end > base, tf.minimum(_first_from(letter, end), limit), end)
        solid = ~tf.reduce_any(codes[:, None] == _BLANKS, axis=1)  # (h,)
        start = tf.minimum(_first_from(solid, start), end)
        end = tf.maximum(_last_up_to(solid, end - 1) + 1, start)
        before = tf.concat([[0], ends_in_bytes(codes)], axis=0)  # (h + 1,)
        from_byte, to_byte = (tf.gather(before, x) - tf.gather(before, base) for x in (start, end))
        text = tf.strings.substr(tf.gather(contexts, example), from_byte, to_byte - from_byte)
        return text, tf.cast(start - base, tf.int32), tf.cast(end - base, tf.int32)

    def _choose(self, ranked: tf.RaggedTensor, null: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Whether the best answer is given, bool (n,), or none; and the probability of what is, float64 (n,).

        Args:
            ranked: float64 (n, None), at most `n_best` scores of different answers, falling.
            null: float64 (n,), the score of no answer.
        """
        scores = ranked.to_tensor(-np.inf, shape=[None, self._n_best])  # (n, n_best)
        null = null[:, None]
        if self._threshold is None:
            given = scores[:, 0] > -np.inf
            return given, tf.where(given, tf.nn.softmax(scores)[:, 0], 1.0)
        above = tf.reduce_sum(tf.cast(scores >= null, tf.int32), axis=1, keepdims=True)  # (n, 1)
        length = tf.where(above < self._n_best, self._n_best - 1, self._n_best)
        scores = tf.where(tf.range(self._n_best) < length, scores, -np.inf)
        given = (scores[:, 0] > -np.inf) & (null[:, 0] - scores[:, 0] <= self._threshold)
        probabilities = tf.nn.softmax(tf.concat([scores, null], axis=1))  # (n, n_best + 1)
        return given, tf.where(given, probabilities[:, 0], probabilities[:, -1])


def in_chunks(model: Callable[..., tf.Tensor], features: dict[str, tf.Tensor], size: int = 32) -> tf.Tensor:
    """A model's outputs (w, t, k) for features (w, t, ...), computed for some rows at a time."""
    count = tf.shape(next(iter(features.values())))[0]

    def add(begin: tf.Tensor, outputs: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        rows = {name: x[begin : begin + size] for name, x in features.items()}
        return begin + size, outputs.write(begin // size, model(rows, training=False))

    chunks = (count + size - 1) // size
    outputs = tf.TensorArray(tf.float32, chunks, infer_shape=False, element_shape=[None, None, 2])
    _, outputs = tf.while_loop(lambda begin, _: begin < count, add, [0, outputs])
    return outputs.concat()


def _first_from(mask: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """The first place where `mask`, bool (h,), is true at or behind each of `places`, int64; h where there is none."""
    found = tf.concat([tf.where(mask)[:, 0], [tf.size(mask, tf.int64)]], axis=0)
    before = tf.concat([[0], tf.cumsum(tf.cast(mask, tf.int64))], axis=0)  # (h + 1,)
    return tf.gather(found, tf.gather(before, places))


def _last_up_to(mask: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """The last place where `mask`, bool (h,), is true at or before each of `places`, int64; -1 where there is none."""
    found = tf.concat([[-1], tf.where(mask)[:, 0]], axis=0)
    before = tf.concat([[0], tf.cumsum(tf.cast(mask, tf.int64))], axis=0)  # (h + 1,)
    return tf.gather(found, tf.gather(before, places + 1))
