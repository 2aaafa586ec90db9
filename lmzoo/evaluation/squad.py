"""SQuAD evaluation: reading answers, locating them in their contexts, and computing the official script's scores."""

from __future__ import annotations

import numbers
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lmzoo.text.validate_text import clean_columns, collect_warnings, is_column, is_text

_SPACES = " \t\r\n\u202f"  # whitespace at which Google's BERT code splits contexts
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


Prediction = str | Mapping[str, Any] | None  # text of an answer, or a dict from `QuestionAnswerer.answer`


class Gold(NamedTuple):
    """A labeled answer in a SQuAD dataset.

    Attributes:
        text: str, text of the answer.
        start: int, offset of the answer's first character in the context; None if unknown.
    """

    text: str
    start: int | None


# === Labels ===


def read_golds(y: Any) -> list[list[Gold]]:
    """Read the labeled answers of each example, in any of the usual formats.

    Args:
        y: for each example, `{"text": str, "answer_start": int}`, a list of such dicts, `{"text": [...],
            "answer_start": [...]}`, a string, or a list of strings. None, an empty list or an empty text mean no
            answer. Alternatively, a dict of columns, with the texts and the start offsets of all examples.

    Returns:
        A list of answers for each example, empty if it has none.

    Raises:
        TypeError: If the format of an entry is not supported; the message names its position.
        ValueError: If lists have unequal lengths.
    """
    if isinstance(y, Mapping):
        y = _make_rows(y, "y")
    elif not is_column(y):
        raise TypeError(f"`y` must be a list with the answer of each example, got {y!r:.60} ({type(y).__name__}).")
    golds = [[gold for gold in _parse_golds(answer, f"y[{i}]") if gold.text] for i, answer in enumerate(y)]
    with collect_warnings():  # discard warnings, which were already issued when the texts were encoded
        cleaned_columns = clean_columns({"y": [gold.text for answers in golds for gold in answers]})
    texts = iter(cleaned_columns[0])
    return [[gold._replace(text=next(texts)) for gold in answers] for answers in golds]


def _parse_golds(answer: Any, place: str) -> list[Gold]:
    """Return the labeled answers of one example; `place` names the example in messages.

    Raises:
        TypeError: If the format of `answer` is not supported.
        ValueError: If lists have unequal lengths.
    """
    if answer is None:
        return []
    if is_text(answer):
        return [Gold(answer, None)]
    if isinstance(answer, Mapping):
        if "text" not in answer:
            raise TypeError(f'`{place}` must have a "text" and its "answer_start", got {answer!r:.60}.')
        if not is_text(answer["text"]):
            return [gold for row in _make_rows(answer, place) for gold in _parse_golds(row, place)]
        start = answer.get("answer_start")
        if start is not None and not isinstance(start, numbers.Integral):
            raise TypeError(f'The "answer_start" of `{place}` must be an integer, got {start!r:.60}.')
        return [Gold(answer["text"], start if start is None else int(start))]
    if isinstance(answer, (Sequence, np.ndarray)) and all(
        is_text(entry) or isinstance(entry, Mapping) for entry in answer
    ):
        return [gold for item in answer for gold in _parse_golds(item, place)]
    raise TypeError(
        f'`{place}` must be {{"text": str, "answer_start": int}}, a list of such, or None for no answer; got '
        f"{answer!r:.60}."
    )


def _make_rows(columns: Mapping[str, Any], place: str) -> list[Any]:
    """Convert a dict of columns to a list of dicts; `place` names the argument in messages.

    Raises:
        TypeError: If the columns are not lists of texts and starts.
        ValueError: If the columns have unequal lengths.
    """
    if "text" not in columns or not all(map(is_column, columns.values())):
        raise TypeError(f'`{place}` must hold lists of "text" and "answer_start", got {columns!r:.60}.')
    names = [name for name in ("text", "answer_start") if name in columns]
    values = [list(columns[name]) for name in names]
    if len({*map(len, values)}) > 1:
        raise ValueError(f"`{place}` holds {len(values[0])} texts but {len(values[1])} starts.")
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def find_answer(context: str, gold: Gold) -> tuple[int, int] | None:
    """Return the start and end of an answer in its context, or None if the answer is not at its start offset.

    Whitespace within the answer (spaces, tabs, line breaks, U+202F) may differ in kind and in amount. None is also
    returned if the answer's start is unknown.
    """
    text = gold.text.strip(_SPACES)
    start = gold.start
    if not text or start is None or not 0 <= start <= len(context):
        return None
    if text == gold.text and context.startswith(text, start):  # the usual case, and much faster
        return start, start + len(text)
    words = re.split(f"[{_SPACES}]+", text)
    leading_space = f"[{_SPACES}]+" if gold.text[0] in _SPACES else ""
    pattern = f"{leading_space}({f'[{_SPACES}]+'.join(map(re.escape, words))})"
    match = re.compile(pattern).match(context, start)
    return match.span(1) if match else None


def find_answers(contexts: Sequence[str], golds: Sequence[Sequence[Gold]]) -> np.ndarray:
    """Check all answers of each example, and locate its first answer in the context.

    Returns:
        int64 (n, 2), start and end offsets in the context; zeros for an example without an answer.

    Raises:
        ValueError: If an answer lacks `answer_start`, is only whitespace, or is not at `answer_start` in its context;
            the message names the example.
    """
    spans = np.zeros((len(contexts), 2), "int64")
    for i, (context, answers) in enumerate(zip(contexts, golds, strict=True)):
        for gold in reversed(answers):
            subject = f"The answer of example {i}, {gold.text!r:.60},"
            start = gold.start
            if start is None:
                raise ValueError(f'{subject} lacks its "answer_start".')
            if not gold.text.strip():
                raise ValueError(f"{subject} is white space; no answer is None.")
            if start < 0:
                raise ValueError(f"{subject} begins before its context: {start}.")
            if (span := find_answer(context, gold)) is None:
                text_at_start = context[start : start + len(gold.text)]
                occurrences = [match.start() for match in re.finditer(re.escape(gold.text), context)]
                distances = [abs(occurrence - start) for occurrence in occurrences]
                hint = f"it occurs at {occurrences[np.argmin(distances)]}" if occurrences else "it occurs nowhere in it"
                raise ValueError(
                    f"{subject} is not at character {start} of its context (`answer_start`), where "
                    f"{text_at_start!r:.60} stands; {hint}."
                )
            spans[i] = span
    return spans


# === Scores ===


def normalize_answer(text: str) -> str:
    """Lowercase an answer and remove ASCII punctuation, articles and extra spaces, as the official script does."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_DROP_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """Return 1.0 if prediction and gold answer are equal after normalization, otherwise 0.0."""
    return float(normalize_answer(prediction) == normalize_answer(gold))


def token_f1(prediction: str, gold: str) -> float:
    """Return the F1 score of a prediction's words against a gold answer's words; 1.0 if neither has any words."""
    predicted_words, gold_words = (Counter(normalize_answer(text).split()) for text in (prediction, gold))
    if not predicted_words or not gold_words:
        return float(predicted_words == gold_words)
    num_common_words = (predicted_words & gold_words).total()
    return 2 * num_common_words / (predicted_words.total() + gold_words.total())


def answer_score(prediction: str, golds: Sequence[Gold], score: Callable[[str, str], float] = token_f1) -> float:
    """Return the best score of a prediction against several gold answers, or its score against "" if there are none."""
    texts = [gold.text for gold in golds if normalize_answer(gold.text)] or [""]
    return max(score(prediction, text) for text in texts)


def squad_metrics(predictions: Sequence[Prediction], golds: Any) -> dict[str, float]:
    """Return exact match and F1 in percent, as defined by the official script of SQuAD 2.0.

    Args:
        predictions: the predicted answer to each example: a string, or a dict with `text` as returned by
            `lmzoo.models.QuestionAnswerer.answer`; "" or None for no answer.
        golds: labels in any format that `read_golds` takes; `answer_start` may be missing. If an example has several
            answers, the best score counts.

    Returns:
        Dict with `exact_match`, `f1` and `total`, the number of examples. If some examples have no answer, also
        `answerable_exact_match`, `answerable_f1`, `answerable_total`, `unanswerable_accuracy` and `unanswerable_total`;
        if none has an answer, without the first two.

    Raises:
        TypeError: If `predictions` is a dict, or a prediction is not an answer; the message names its position.
        ValueError: If there are no examples, or if the numbers of predictions and labels differ.

    Example:

    ```python
    from lmzoo.evaluation import squad_metrics

    squad_metrics(["the Broncos"], [{"text": ["Denver Broncos", "Broncos"]}])
    # {"exact_match": 100.0, "f1": 100.0, "total": 1}
    ```
    """
    if isinstance(predictions, Mapping):
        raise TypeError("`predictions` must be a list, got a dict. Pass its values, in the order of `golds`.")
    answer_lists = read_golds(golds)
    texts = [_get_answer_text(prediction, i) for i, prediction in enumerate(predictions)]
    if len(answer_lists) != len(texts) or not answer_lists:
        raise ValueError(
            f"Expected as many predictions as golds, and at least one; got {len(texts)} and {len(answer_lists)}."
        )
    pairs = [*zip(texts, answer_lists, strict=True)]
    exact_matches, f1_scores = (
        np.array([answer_score(*pair, score) for pair in pairs]) * 100 for score in (exact_match, token_f1)
    )
    metrics = {"exact_match": float(exact_matches.mean()), "f1": float(f1_scores.mean()), "total": len(answer_lists)}
    has_answer = np.array([bool(answers) for answers in answer_lists])
    if not has_answer.all():
        scores_by_subset = {
            "answerable_exact_match": exact_matches[has_answer],
            "answerable_f1": f1_scores[has_answer],
            "unanswerable_accuracy": exact_matches[~has_answer],
        }
        metrics |= {
            name: float(subset_scores.mean()) for name, subset_scores in scores_by_subset.items() if len(subset_scores)
        }
        metrics |= {"answerable_total": int(has_answer.sum()), "unanswerable_total": int((~has_answer).sum())}
    return metrics


def _get_answer_text(prediction: Prediction, position: int) -> str:
    """Return the text of a prediction, or "" for no answer.

    Raises:
        TypeError: If the prediction is not an answer or its text; the message names its `position` in the list.
    """
    text = prediction.get("text") if isinstance(prediction, Mapping) else "" if prediction is None else prediction
    if not isinstance(text, str):
        raise TypeError(f"`predictions[{position}]` must be an answer or its text, got {prediction!r:.60}.")
    return text


def best_null_threshold(differences: np.ndarray, scores: np.ndarray, null_scores: np.ndarray) -> float:
    """Return the null-score threshold that gives the highest mean score; on ties, the lowest such threshold.

    Args:
        differences: float (n,), null score minus the best answer's score; above the threshold, no answer is given.
        scores: float (n,), evaluation score of each answer.
        null_scores: float (n,), evaluation score for giving no answer.

    Returns:
        A float between two of the finite differences, below the lowest or above the highest; 0.0 if none is finite.
    """
    order = np.argsort(differences, kind="stable")
    sorted_differences = differences[order]
    gains = np.concatenate([[0.0], np.cumsum((scores - null_scores)[order])])
    finite_differences = sorted_differences[np.isfinite(sorted_differences)]
    if not len(finite_differences):
        return 0.0
    # A threshold can only separate the first k differences from the rest if the next difference is larger.
    cuts = [
        k
        for k in range(len(finite_differences) + 1)
        if k in (0, len(finite_differences)) or finite_differences[k - 1] < finite_differences[k]
    ]
    best_cut = max(cuts, key=lambda k: gains[k])
    edges = np.concatenate([[finite_differences[0] - 1], finite_differences, [finite_differences[-1] + 1]])
    return float((edges[best_cut] + edges[best_cut + 1]) / 2)
