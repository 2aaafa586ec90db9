"""Ranking of answers: from the logits of windows to answers in the original string.

Shapes: w windows, T positions, k entries of an n-best list.
"""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

import numpy as np

from lmzoo.text.probabilities import softmax
from lmzoo.text.windows import EncodedWindows


class Answer(NamedTuple):
    """An answer `context[start:end]` and its score.

    Attributes:
        score: float, sum of the start and end logits.
        start: int, offset of the first character; equal to `end` for no answer.
        end: int, offset after the last character.
    """

    score: float
    start: int
    end: int


def rank_answers(
    logits: np.ndarray, encoded: EncodedWindows, n_best: int = 20, max_answer_length: int = 30
) -> list[list[Answer]]:
    """Return the best answers of each example, best first, by the rules of Google's BERT code for SQuAD.

    In each window the `n_best` highest starts and ends, among all tokens of the sequence, are paired. A pair is valid
    if it lies in the context, has at most `max_answer_length` tokens, and starts at a token that has the most context
    in this window (`EncodedWindows.max_context`). Of several answers with the same text, only the best is listed.

    Args:
        logits: float (w, T, 2), start and end logits.
        encoded: `EncodedWindows`, the w windows.
        n_best: int, number of starts and of ends per window, and maximum number of answers per example.
        max_answer_length: int, maximum number of tokens of an answer.

    Returns:
        For each example a list of at most `n_best` answers, empty if no pair is valid.
    """
    lengths = encoded.lengths
    is_token = np.arange(logits.shape[1]) < lengths[:, None]  # (w, T)
    best_positions = np.argsort(np.where(is_token[:, :, None], -logits, np.inf), axis=1, kind="stable")[
        :, :n_best
    ]  # (w, k, 2)
    scores = np.take_along_axis(logits, best_positions, axis=1).astype("float64")
    first_tokens = best_positions[:, :, 0, None]  # (w, k, 1)
    last_tokens = best_positions[:, None, :, 1]  # (w, 1, k)
    begins, num_window_tokens = (array[:, None, None] for array in encoded.windows)
    second = encoded.second[:, None, None]
    is_valid = (
        (first_tokens >= second)
        & (last_tokens < second + num_window_tokens)
        & (first_tokens <= last_tokens)
        & (last_tokens < first_tokens + max_answer_length)
    )
    window_indices, start_ranks, end_ranks = np.nonzero(is_valid)
    start_positions = first_tokens[window_indices, start_ranks, 0] - second[window_indices, 0, 0]  # within the windows
    window_lengths = encoded.windows[1]
    has_most_context = encoded.max_context()[
        (np.cumsum(window_lengths) - window_lengths)[window_indices] + start_positions
    ]
    window_indices = window_indices[has_most_context]
    start_ranks = start_ranks[has_most_context]
    end_ranks = end_ranks[has_most_context]
    answer_scores = scores[window_indices, start_ranks, 0] + scores[window_indices, end_ranks, 1]
    token_offsets = (begins - second)[window_indices, 0, 0]
    starts = encoded.spans[token_offsets + first_tokens[window_indices, start_ranks, 0], 0]
    ends = encoded.spans[token_offsets + last_tokens[window_indices, 0, end_ranks], 1]
    answer_examples = encoded.examples[window_indices]
    order = np.lexsort((-answer_scores, answer_examples))  # stable: ties keep the order of windows, starts, ends
    example_splits = np.searchsorted(answer_examples[order], np.arange(len(encoded.contexts) + 1))
    columns = [array[order].tolist() for array in (answer_scores, starts, ends)]
    return [
        _select_distinct(context, list(zip(*(column[begin:end] for column in columns), strict=True)), n_best)
        for context, begin, end in zip(
            encoded.contexts, example_splits[:-1].tolist(), example_splits[1:].tolist(), strict=True
        )
    ]


def _select_distinct(context: str, ranked_spans: list[tuple[float, int, int]], n_best: int) -> list[Answer]:
    """Return the first `n_best` answers with distinct texts, without outer whitespace but with all combining marks.

    Args:
        context: str, the text that the answers are from.
        ranked_spans: tuples `(score, start, end)`, best first.
        n_best: int, maximum number of answers.
    """
    answers: dict[str, Answer] = {}
    for score, start, end in ranked_spans:
        if len(answers) == n_best:
            break
        while 0 < start < len(context) and is_mark(context[start]):
            start -= 1
        while 0 < end < len(context) and is_mark(context[end]):
            end += 1
        text = context[start:end]
        start += len(text) - len(text.lstrip())
        text = text.strip()
        if text and text not in answers:
            answers[text] = Answer(score, start, start + len(text))
    return list(answers.values())


def is_mark(character: str) -> bool:
    """Return whether a character combines with the previous character."""
    return character > "\u02ff" and unicodedata.category(character)[0] == "M"


def null_scores(logits: np.ndarray, encoded: EncodedWindows) -> np.ndarray:
    """Return each example's score for having no answer, the lowest score among its windows: float64 (n,).

    A window's score is the sum of the start and end logits of its first token, the training target for no answer.
    """
    scores = np.full(len(encoded.contexts), np.inf)
    np.minimum.at(scores, encoded.examples, logits[:, 0].astype("float64").sum(axis=1))
    return scores


def insert_null(answers: list[Answer], null: float, threshold: float, n_best: int) -> tuple[list[Answer], list[float]]:
    """Insert the null answer (no answer) into an n-best list, and return the list and the probability of each entry.

    The null answer comes before answers whose scores are less than `null - threshold`. The probabilities, a softmax
    over the scores, do not depend on the threshold.

    Args:
        answers: list of `Answer`, best first.
        null: float, score of the null answer.
        threshold: float, by how much `null` must exceed the score of an answer to come before it.
        n_best: int, maximum number of `answers`. If fewer than `n_best` of them score at least `null`, only the first
            `n_best` - 1 (but at least one) are kept before the null answer is inserted. Otherwise all of them are kept,
            and the list has one more entry.
    """
    num_above_null = sum(answer.score >= null for answer in answers)
    if num_above_null < n_best:  # the null answer is in the list
        answers = answers[: max(1, n_best - 1)]
    probabilities = softmax(np.array([*(answer.score for answer in answers), null])).tolist()
    null_index = sum(null - answer.score <= threshold for answer in answers)
    answers = [*answers[:null_index], Answer(null, 0, 0), *answers[null_index:]]
    return answers, [*probabilities[:null_index], probabilities[-1], *probabilities[null_index:-1]]
