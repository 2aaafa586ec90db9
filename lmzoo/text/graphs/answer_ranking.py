"""`lmzoo.text.answer_ranking` as TensorFlow ops."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from lmzoo.text.answer_ranking import is_mark
from lmzoo.text.graphs.token_ops import ends_in_bytes, first_from, last_up_to
from lmzoo.text.graphs.windows import Windows

_CHUNK = 32  # windows that a model reads at a time
_BLANKS = np.array([code for code in range(sys.maxunicode + 1) if chr(code).isspace()], "int32")


class AnswerGraph:
    """The best answer to each question: `lmzoo.text.answer_ranking` as TensorFlow ops.

    `null_score_threshold` is None if every question has an answer. Shapes: n examples, w windows, t positions, a
    possible answers.
    """

    def __init__(self, n_best: int, max_answer_length: int, null_score_threshold: float | None) -> None:
        self._n_best, self._longest, self._threshold = n_best, max_answer_length, null_score_threshold
        marks = np.array([is_mark(chr(code)) for code in range(sys.maxunicode + 1)])
        self._mark_edges = np.flatnonzero(np.diff(marks, prepend=False)).astype("int32")  # where marks begin and end

    def __call__(self, contexts: tf.Tensor, logits: tf.Tensor, windows: Windows) -> dict[str, tf.Tensor]:
        """Return the best answers, from contexts (n,) and their windows' logits of starts and ends, float32 (w, t, 2).

        Returns:
            `answer`, `tf.string` (n,), `start` and `end`, int32 (n,), in characters of the context, and `score`,
            float32 (n,); "", 0 and 0 for no answer. See `lmzoo.models.QuestionAnswerer.answer`.
        """
        count, texts = tf.size(contexts, tf.int64), _Contexts(contexts, self._mark_edges)
        valid, kept = self._pairs(logits, windows)
        found = self._read(kept, texts, logits, windows)
        if self._threshold is None:  # there must be an answer
            answered = tf.math.unsorted_segment_sum(tf.ones_like(found[0]), found[0], count) > 0  # (n,)
            others = valid & ~tf.gather(answered, windows.example)[:, None, None]
            rest = self._read(others, texts, logits, windows)
            found = [tf.concat(both, axis=0) for both in zip(found, rest, strict=True)]
        example, score, text, start, end = found
        order = tf.argsort(score, direction="DESCENDING", stable=True)
        order = tf.gather(order, tf.argsort(tf.gather(example, order), stable=True))
        score, example, text, start, end = (tf.gather(x, order) for x in (score, example, text, start, end))
        # Of several answers with the same text the first is kept.
        different, number = tf.unique(tf.strings.join([tf.strings.as_string(example), text], ":"))
        first = tf.math.unsorted_segment_min(tf.range(tf.size(number)), number, tf.size(different))
        score, example, text, start, end = (tf.gather(x, first) for x in (score, example, text, start, end))
        ranked = tf.RaggedTensor.from_value_rowids(score, example, count, validate=False)
        null = tf.math.segment_min(tf.reduce_sum(tf.cast(logits[:, 0], tf.float64), axis=-1), windows.example)  # (n,)
        given, probability = self._choose(ranked[:, : self._n_best], null)
        best = tf.where(given, ranked.row_starts(), tf.size(score, tf.int64))  # (n,); for no answer the index after all
        nothing = {"answer": (text, ""), "start": (start, 0), "end": (end, 0)}
        answers = {name: tf.gather(tf.concat([x, [none]], axis=0), best) for name, (x, none) in nothing.items()}
        return {**answers, "score": tf.cast(probability, tf.float32)}

    def _pairs(self, logits: tf.Tensor, windows: Windows) -> tuple[tf.Tensor, tf.Tensor]:
        """Return which pairs can be answers, and which of these consist of the best starts and ends: bool (w, t, m).

        The indices are the position of the first token in the sequence, and the number of tokens after it.
        """
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
        return valid, valid & is_best[:, 0, :, None] & ends

    def _read(self, pairs: tf.Tensor, texts: _Contexts, logits: tf.Tensor, windows: Windows) -> list[tf.Tensor]:
        """Return example, score, text, start and end, each (a,), of the given pairs whose text is not empty."""
        window, first, further = tf.unstack(tf.where(pairs), num=3, axis=1)  # (a,)
        logits = tf.cast(logits, tf.float64)
        score = tf.gather_nd(logits[:, :, 0], tf.stack([window, first], axis=1))
        score += tf.gather_nd(logits[:, :, 1], tf.stack([window, first + further], axis=1))
        example = tf.gather(windows.example, window)
        token = tf.gather(windows.begin - windows.second, window) + first  # of all contexts
        start, end = tf.gather(windows.spans[:, 0], token), tf.gather(windows.spans[:, 1], token + further)
        text, start, end = texts.cut(example, start, end)
        return [tf.boolean_mask(x, start < end) for x in (example, score, text, start, end)]

    def _choose(self, ranked: tf.RaggedTensor, null: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Whether the best answer is given, rather than none, bool (n,); and the probability of that, float64 (n,).

        `ranked`, float64 (n, None), are at most `n_best` scores of different answers, falling; `null`, float64 (n,),
        is the score of no answer.
        """
        scores = ranked.to_tensor(-np.inf, shape=[None, self._n_best])  # (n, n_best)
        null = null[:, None]
        if self._threshold is None:
            given = scores[:, 0] > -np.inf
            return given, tf.where(given, tf.nn.softmax(scores)[:, 0], 1.0)
        above = tf.reduce_sum(tf.cast(scores >= null, tf.int32), axis=1, keepdims=True)  # (n, 1)
        length = tf.where(above < self._n_best, max(1, self._n_best - 1), self._n_best)
        scores = tf.where(tf.range(self._n_best) < length, scores, -np.inf)
        given = (scores[:, 0] > -np.inf) & (null[:, 0] - scores[:, 0] <= self._threshold)
        probabilities = tf.nn.softmax(tf.concat([scores, null], axis=1))  # (n, n_best + 1)
        return given, tf.where(given, probabilities[:, 0], probabilities[:, -1])


class _Contexts:
    """Texts to cut answers out of.

    Args:
        contexts: `tf.string` (n,), with h characters in total.
        mark_edges: the code points at which runs of combining marks begin and end, alternately.
    """

    def __init__(self, contexts: tf.Tensor, mark_edges: np.ndarray) -> None:
        self._texts = tf.strings.unicode_transcode(contexts, "UTF-8", "UTF-8", errors="replace")
        self._rows = tf.strings.unicode_decode(self._texts, "UTF-8")  # (n, None)
        codes = self._rows.values  # (h,)
        self._letter = tf.searchsorted(mark_edges, codes, side="right") % 2 == 0  # (h,)
        self._solid = ~tf.reduce_any(codes[:, None] == _BLANKS, axis=1)  # (h,)
        self._byte = tf.concat([[0], ends_in_bytes(codes)], axis=0)  # (h + 1,)

    def cut(self, example: tf.Tensor, start: tf.Tensor, end: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Cut parts out of texts, without whitespace around them and with all combining marks of their letters.

        `example` are indices of texts, int64 (a,); `start` and `end` are counted in characters, int32 (a,).

        Returns:
            The parts, `tf.string` (a,), and where they start and end.
        """
        base, limit = (tf.gather(x, example) for x in (self._rows.row_starts(), self._rows.row_limits()))  # (a,)
        start, end = (base + tf.cast(x, tf.int64) for x in (start, end))
        letter = last_up_to(self._letter, tf.minimum(start, limit - 1))
        start = tf.where(start < limit, tf.maximum(letter, base), start)
        end = tf.where(end > base, tf.minimum(first_from(self._letter, end), limit), end)
        start = tf.minimum(first_from(self._solid, start), end)
        end = tf.maximum(last_up_to(self._solid, end - 1) + 1, start)
        from_byte, to_byte = (tf.gather(self._byte, x) - tf.gather(self._byte, base) for x in (start, end))
        text = tf.strings.substr(tf.gather(self._texts, example), from_byte, to_byte - from_byte)
        return text, tf.cast(start - base, tf.int32), tf.cast(end - base, tf.int32)


def in_chunks(model: Callable[..., tf.Tensor], features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Return a model's outputs (w, t, 2) for features (w, t, ...), computed for some windows at a time."""
    count = tf.shape(next(iter(features.values())))[0]

    def add(begin: tf.Tensor, outputs: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        rows = {name: x[begin : begin + _CHUNK] for name, x in features.items()}
        return begin + _CHUNK, outputs.write(begin // _CHUNK, model(rows, training=False))

    chunks = (count + _CHUNK - 1) // _CHUNK
    outputs = tf.TensorArray(tf.float32, chunks, infer_shape=False, element_shape=[None, None, 2])
    _, outputs = tf.while_loop(lambda begin, _: begin < count, add, [0, outputs])
    return outputs.concat()
