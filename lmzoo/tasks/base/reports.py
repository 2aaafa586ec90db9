"""How the answers of each kind of task compare with labels: what `Task.report` and `lmzoo evaluate` show."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lmzoo.common.span_marks import OUTSIDE, marks_spans
from lmzoo.evaluation.errors import LENGTH, add_errors, add_learning_curve, add_slices, check_columns, learning_curve
from lmzoo.evaluation.reports import Judged, Report, compare_classes, compare_label_sets, compare_numbers, compare_tags
from lmzoo.evaluation.squad import answer_score, exact_match, read_golds, squad_metrics
from lmzoo.evaluation.translations import compare_translations
from lmzoo.tasks.base.examples import Texts
from lmzoo.tasks.base.labels import encode_classes, encode_numbers, one_each
from lmzoo.tasks.inputs import list_rows
from lmzoo.text import Encoded, EncodedWords
from lmzoo.text.segments import split_segments
from lmzoo.text.validate_text import clean_texts
from lmzoo.training.span_metrics import IGNORED

# The label of a word, what the model says, the probability of that, and the characters of the word.
_TaggedWord = tuple[Any, str, float, tuple[int, int]]

# Each function that begins with `report` is the method `Task.compare` of some task: it takes the task, parts of the
# examples, their labels, the batch size, and the loss and metrics of the task on them.


def _answers(task: Any, parts: Iterable[Texts], batch_size: int, **options: Any) -> list[Any]:
    """Return what the task's verb returns for each example."""
    return [answer for part in parts for answer in getattr(task, task.verb)(part, batch_size=batch_size, **options)]


def check_additions(
    task: Any, x: Texts, errors: bool, columns: Mapping[str, Sequence[Any]] | None, history: Any = None
) -> None:
    """Check what `with_errors` is to add, before a task is evaluated.

    Raises:
        TypeError: for encoded examples, whose texts are not known, or a column that is no list.
        ValueError: as `with_errors`, and for a column whose table would replace that of the lengths of texts.
    """
    if errors and isinstance(x, Encoded):
        raise TypeError("Errors are shown with their texts: pass these as they are, not encoded.")
    if errors and columns and LENGTH in columns:
        raise ValueError(f"The column {LENGTH!r} must have another name: there is a table by the length of texts.")
    if columns is not None and not isinstance(x, Encoded):
        check_columns(columns, len(list_rows(x)))
    if history is not None:
        learning_curve(history)


def with_errors(
    report: Report,
    x: Texts,
    errors: bool = True,
    columns: Mapping[str, Sequence[Any]] | None = None,
    history: Any = None,
) -> Report:
    """Return a report with the tables that `Task.report` adds if it is asked for them; see `check_additions`.

    Args:
        report: of the examples.
        x: the examples, not encoded.
        errors: see `add_errors`.
        columns: see `add_slices`.
        history: see `add_learning_curve`.

    Raises:
        TypeError: see `add_slices` and `add_learning_curve`.
        ValueError: see `add_errors`, `add_slices` and `add_learning_curve`.
    """
    if errors:
        report = add_errors(report, _shown(x))
    if columns:
        report = add_slices(report, columns)
    return report if history is None else add_learning_curve(report, history)


def _shown(x: Texts) -> list[str]:
    """Each example as one text: of pairs both, of words all, of a prompt with choices the prompt first."""

    def shown(part: Any, between: str = " / ") -> str:
        if isinstance(part, bytes):
            return part.decode(errors="replace")
        return part if isinstance(part, str) else between.join(shown(piece, " ") for piece in part)

    return [shown(row, " / " if isinstance(row, tuple) else " ") for row in list_rows(x)]


def report_classes(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """See `compare_classes`, and `compare_label_sets` for a task with `multi_label`."""
    if task.multi_label:
        return report_label_sets(task, parts, y, batch_size)
    names = task.class_names
    actual = [names[k] for k in task.encode_labels(y).tolist()]
    found = _answers(task, parts, batch_size)
    predicted, probability = ([answer[name] for answer in found] for name in ("label", "score"))
    report = compare_classes(actual, predicted, names)
    return replace(report, judged=Judged.of_classes(actual, predicted, probability))


def report_label_sets(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """See `compare_label_sets`; each class of each text is an answer of its own, yes or no."""
    names = task.class_names
    actual = [[names[k] for k in np.flatnonzero(flags).tolist()] for flags in task.encode_labels(y)]  # flags (C,)
    found = [
        {answer["label"]: answer["score"] for answer in answers}
        for answers in _answers(task, parts, batch_size, threshold=0.0)
    ]
    predicted = [[name for name, score in answers.items() if score >= 0.5] for answers in found]
    sides = [[name if name in row else f"not {name}" for row in side for name in names] for side in (actual, predicted)]
    scores = np.array([[answers[name] for name in names] for answers in found]).reshape(-1)
    decisions = Judged.of_classes(sides[0], sides[1], np.maximum(scores, 1 - scores))
    decisions = replace(decisions, example=np.repeat(np.arange(len(found)), len(names)))
    return replace(compare_label_sets(actual, predicted, names), judged=decisions)


def report_numbers(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """See `compare_numbers`."""
    y = _numbers(y)
    predicted = _answers(task, parts, batch_size)
    return replace(compare_numbers(y, predicted), judged=Judged.of_numbers(y, predicted))


def report_tags(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """See `compare_tags`; words that were truncated count as outside of spans, or as wrong; -100 means no label."""
    unseen = OUTSIDE if marks_spans(task.labels) else ""
    words: list[list[_TaggedWord]] = []
    rest = iter(y)
    for part in parts:
        encoded = task.encode_inputs(part)
        found = _tagged_words(task, encoded, unseen, batch_size)
        given = task.labels_by_word(part, itertools.islice(rest, len(encoded)), encoded)[0]
        words += [
            [(label, *word) for label, word in zip(labels, of_text, strict=True) if label != IGNORED]
            for labels, of_text in zip(given, found, strict=True)
        ]
    flat, names = [word for of_text in words for word in of_text], task.class_names
    right = [names[k] for k in encode_classes([label for label, *_ in flat], task.num_classes, task.labels).tolist()]
    labels_of, predicted = iter(right), [[label for _, label, *_ in of_text] for of_text in words]
    actual = [list(itertools.islice(labels_of, len(of_text))) for of_text in words]
    decisions = Judged.of_classes(right, [*itertools.chain(*predicted)], [score for *_, score, _ in flat])
    decisions = replace(
        decisions,
        example=np.repeat(np.arange(len(words)), [*map(len, words)]),
        places=np.array([place for *_, place in flat], "int64").reshape(-1, 2),
        count=len(words),
    )
    return replace(compare_tags(actual, predicted, names), judged=decisions)


def _numbers(y: Any) -> np.ndarray:
    """Return labels as float64 (n,), checked as by `fit`, which rounds them to float32."""
    encode_numbers(y)
    return one_each(y, "one number for each text").astype("float64")


def _tagged_words(
    task: Any, encoded: EncodedWords, unseen: str, batch_size: int
) -> list[list[tuple[str, float, tuple[int, int]]]]:
    """Return the label of each word of each text, its probability, NaN for words that were truncated, and its place."""
    columns = np.split(encoded.first, encoded.word_splits[1:-1])
    tagged = []
    for found, places, words in zip(task.labels_of_words(encoded, batch_size), columns, encoded.words, strict=True):
        answers = zip(*(values.tolist() for values in found), strict=True)
        of_text = []
        for place, (_, start, end) in zip(places, words, strict=True):
            label, score = next(answers) if place >= 0 else (None, float("nan"))
            of_text.append((unseen if label is None else task.class_names[label], score, (start, end)))
        tagged.append(of_text)
    return tagged


def report_answers(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """See `squad_metrics`."""
    found, golds = _answers(task, parts, batch_size), read_golds(y)
    scores = {name: x for name, x in squad_metrics(found, y).items() if not name.endswith("total")}
    predicted, actual = [answer["text"] for answer in found], [answers[0].text if answers else "" for answers in golds]
    error = [1 - answer_score(text, answers, exact_match) for text, answers in zip(predicted, golds, strict=True)]
    answers = Judged.of_classes(actual, predicted, [answer["score"] for answer in found])
    return Report(scores, judged=replace(answers, error=np.array(error, "float64")))


def report_choices(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """Return the accuracy."""
    right = [str(index) for index in task.encode_labels(y).tolist()]
    found = _answers(task, parts, batch_size)
    answers = Judged.of_classes(
        right, [str(answer["index"]) for answer in found], [answer["score"] for answer in found]
    )
    return Report({"accuracy": float(np.mean(answers.error == 0))}, judged=answers)


def report_masked(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
    """Return the perplexity: the exponential of the loss of `evaluate`, which is a mean over batches."""
    return Report({"perplexity": float(np.exp(measured["loss"]))})


def report_pairs(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """See `compare_numbers`, for labels and cosines; no scores without labels."""
    if y is None:
        return Report()
    y, cosines = _numbers(y), []
    for part in parts:
        a, b = (task.embed(texts, batch_size) for texts in split_segments(part))  # (n, H)
        cosines.append((a * b).sum(axis=1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-12))
    predicted = np.concatenate(cosines)
    return replace(compare_numbers(y, predicted), judged=Judged.of_numbers(y, predicted))


def report_translations(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
    """See `compare_translations`."""
    translations: list[str] = []
    references: list[Any] = []
    for part in parts:
        sources, targets = split_segments(part)
        translations += task.translate(sources, batch_size=batch_size)
        references += [] if targets is None else clean_texts(targets, "targets")
    return compare_translations(translations, references)
