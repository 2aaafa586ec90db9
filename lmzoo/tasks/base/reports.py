"""How the answers of each kind of task compare with labels: what `Task.report` and `lmzoo evaluate` show."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from lmzoo.evaluation.reports import Report, compare_classes, compare_label_sets, compare_numbers, compare_tags
from lmzoo.evaluation.squad import squad_metrics
from lmzoo.evaluation.translations import compare_translations
from lmzoo.span_marks import OUTSIDE, marks_spans
from lmzoo.tasks.base.examples import Texts
from lmzoo.tasks.base.input_kinds import split_segments
from lmzoo.text import EncodedWords
from lmzoo.training.span_metrics import IGNORED

# Each function is the method `Task.compare` of some task: it takes the task, parts of the examples, their labels, the
# batch size, and the loss and metrics of the task on them.


def _answers(task: Any, parts: Iterable[Texts], batch_size: int) -> list[Any]:
    """What the task's verb returns for each example."""
    return [answer for part in parts for answer in getattr(task, task.verb)(part, batch_size=batch_size)]


def report_classes(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """See `compare_classes`, and `compare_label_sets` for a task with `multi_label`."""
    if task.multi_label:
        return report_label_sets(task, parts, y, batch_size)
    return compare_classes(
        _named(y, task), [found["label"] for found in _answers(task, parts, batch_size)], task.class_names
    )


def report_label_sets(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """See `compare_label_sets`."""
    if getattr(y, "ndim", 1) == 2:  # of 0 and 1
        y = [np.flatnonzero(row) for row in y]
    predicted = [[found["label"] for found in answer] for answer in _answers(task, parts, batch_size)]
    return compare_label_sets(_named(y, task), predicted, task.class_names)


def report_numbers(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """See `compare_numbers`."""
    return compare_numbers(y, _answers(task, parts, batch_size))


def report_tags(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """See `compare_tags`; words that were cut off count as outside of spans, or as wrong; -100 means no label."""
    unseen = OUTSIDE if marks_spans(task.labels) else ""
    labels: list[list[str]] = []
    given: list[list[Any]] = []
    rest = iter(y)
    for part in parts:
        encoded = task.encode_inputs(part)
        labels += _labels_of_words(task, encoded, unseen, batch_size)
        given += task.labels_by_word(part, itertools.islice(rest, len(encoded)), encoded)[0]
    counted = [[label != IGNORED for label in of_text] for of_text in given]
    actual, predicted = (
        [[*itertools.compress(*of_text)] for of_text in zip(side, counted, strict=True)] for side in (given, labels)
    )
    return compare_tags(_named(actual, task), predicted, task.class_names)


def _named(y: Any, task: Any) -> Any:
    """Labels by name, where they were given by number."""
    if isinstance(y, str):
        return y
    return [_named(label, task) for label in y] if hasattr(y, "__len__") else task.class_names[int(y)]


def _labels_of_words(task: Any, encoded: EncodedWords, unseen: str, batch_size: int) -> Iterator[list[str]]:
    columns = np.split(encoded.first, encoded.word_splits[1:-1])
    for labels, places in zip(task.labels_of_words(encoded, batch_size), columns, strict=True):
        names = iter(labels)
        yield [task.class_names[next(names)] if place >= 0 else unseen for place in places]


def report_answers(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """See `squad_metrics`."""
    scores = squad_metrics(_answers(task, parts, batch_size), y)
    return Report({name: value for name, value in scores.items() if not name.endswith("total")})


def report_choices(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """The accuracy."""
    chosen = [found["index"] for found in _answers(task, parts, batch_size)]
    return Report({"accuracy": float(np.mean(np.equal(chosen, y)))})


def report_masked(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
    """The perplexity: the exponential of the loss."""
    return Report({"perplexity": float(np.exp(measured["loss"]))})


def report_pairs(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **_: float) -> Report:
    """See `compare_numbers`, for labels and cosines; no scores without labels."""
    if y is None:
        return Report()
    cosines = []
    for part in parts:
        a, b = (task.embed(texts, batch_size) for texts in split_segments(part))  # (n, H)
        cosines.append((a * b).sum(axis=1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-12))
    return compare_numbers(y, np.concatenate(cosines))


def report_translations(task: Any, parts: Iterable[Texts], y: Any, batch_size: int, **measured: float) -> Report:
    """See `compare_translations`."""
    translations: list[str] = []
    references: list[Any] = []
    for part in parts:
        sources, targets = split_segments(part)
        translations += task.translate(sources, batch_size=batch_size)
        references += targets or ()
    return compare_translations(translations, references)
