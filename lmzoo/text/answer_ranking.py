"""Turns the logits of windows into answers in the original string, after the model has run.

Shapes: w windows, T positions, k entries of an n-best list.
"""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

import numpy as np

from lmzoo.text.probabilities import softmax
from lmzoo.text.windows import EncodedWindows


class Answer(NamedTuple):
    """The answer `context[start:end]`; `start == end` is no answer. `score` is the sum of two logits."""

    score: float
    start: int
    end: int


def rank_answers(
    logits: np.ndarray, encoded: EncodedWindows, n_best: int = 20, max_answer_length: int = 30
) -> list[list[Answer]]:
    """Return the best answers of each example, best first, as in Google's BERT code for SQuAD.

    In each window the `n_best` highest starts and ends, among all tokens of the sequence, are paired: logits are float
    (w, T, 2). A pair is kept if it lies in the context, has at most `max_answer_length` tokens, and starts at a token
    that has the most context in this window (`EncodedWindows.max_context`). Of several answers with the same text the
    highest is kept.

    Returns:
        For each example at most `n_best` answers; none if no pair is kept.
    """
    lengths = encoded.lengths
    real = np.arange(logits.shape[1]) < lengths[:, None]  # (w, T)
    best = np.argsort(np.where(real[:, :, None], -logits, np.inf), axis=1, kind="stable")[:, :n_best]  # (w, k, 2)
    scores = np.take_along_axis(logits, best, axis=1).astype("float64")
    first, last = best[:, :, 0, None], best[:, None, :, 1]  # (w, k, 1), (w, 1, k)
    begins, counts = (a[:, None, None] for a in encoded.windows)
    second = encoded.second[:, None, None]
    inside = (first >= second) & (last < second + counts) & (first <= last) & (last < first + max_answer_length)
    window, i, j = np.nonzero(inside)
    place = first[window, i, 0] - second[window, 0, 0]  # of the start within its window
    widths = encoded.windows[1]
    kept = encoded.max_context()[(np.cumsum(widths) - widths)[window] + place]
    window, i, j = window[kept], i[kept], j[kept]
    score = scores[window, i, 0] + scores[window, j, 1]
    to_token = (begins - second)[window, 0, 0]
    start = encoded.spans[to_token + first[window, i, 0], 0]
    end = encoded.spans[to_token + last[window, 0, j], 1]
    example = encoded.examples[window]
    order = np.lexsort((-score, example))  # stable: ties keep the order of windows, starts, ends
    splits = np.searchsorted(example[order], np.arange(len(encoded.contexts) + 1))
    columns = [a[order].tolist() for a in (score, start, end)]
    return [
        _distinct(context, list(zip(*(c[a:b] for c in columns), strict=True)), n_best)
        for context, a, b in zip(encoded.contexts, splits[:-1].tolist(), splits[1:].tolist(), strict=True)
    ]


def _distinct(context: str, ranked: list[tuple[float, int, int]], n_best: int) -> list[Answer]:
    """Return the first answer of each text, without whitespace around it, with all combining marks of its letters."""
    found: dict[str, Answer] = {}
    for score, start, end in ranked:
        if len(found) == n_best:
            break
        while 0 < start < len(context) and is_mark(context[start]):
            start -= 1
        while 0 < end < len(context) and is_mark(context[end]):
            end += 1
        text = context[start:end]
        start += len(text) - len(text.lstrip())
        text = text.strip()
        if text and text not in found:
            found[text] = Answer(score, start, start + len(text))
    return list(found.values())


def is_mark(character: str) -> bool:
    """Return whether a character combines with the one before it."""
    return character > "\u02ff" and unicodedata.category(character)[0] == "M"


def null_scores(logits: np.ndarray, encoded: EncodedWindows) -> np.ndarray:
    """Return the score of giving no answer, for each example the lowest of its windows: float64 (n,).

    The score of a window is the sum of both logits of its first token, the training target if there is no answer.
    """
    result = np.full(len(encoded.contexts), np.inf)
    np.minimum.at(result, encoded.examples, logits[:, 0].astype("float64").sum(axis=1))
    return result


def with_null(answers: list[Answer], null: float, threshold: float, n_best: int) -> tuple[list[Answer], list[float]]:
    """Return an n-best list that includes the null answer (no answer), and the probability of each entry.

    The null answer comes before those whose scores are less than `null - threshold`. The probabilities, a softmax over
    the scores, do not depend on the threshold.
    """
    above = sum(answer.score >= null for answer in answers)
    if above < n_best:  # the null answer is among the best, so it takes a place in the list
        answers = answers[: max(1, n_best - 1)]
    probabilities = softmax(np.array([*(answer.score for answer in answers), null])).tolist()
    place = sum(null - answer.score <= threshold for answer in answers)
    answers = [*answers[:place], Answer(null, 0, 0), *answers[place:]]
    return answers, [*probabilities[:place], probabilities[-1], *probabilities[place:-1]]
