"""The scores of `lmzoo evaluate`: what each kind of task predicts, compared with the labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from lmzoo.cli.examples import Inputs, Labels
from lmzoo.cli.output import in_parts
from lmzoo.evaluation.reports import Report, compare_classes, compare_label_sets, compare_numbers, compare_tags
from lmzoo.evaluation.squad import squad_metrics
from lmzoo.tasks import Task
from lmzoo.text.span_labels import OUTSIDE, marks_spans


def score(task: Task, report: str, named: bool, x: Inputs, y: Labels, batch_size: int) -> Report:
    """The loss and metrics of a task, and the scores of its kind.

    Args:
        task: the model.
        report: name of a function of this module. It takes the task, an iterator over parts of the examples, their
            labels, the batch size, and the loss and metrics.
        named: whether labels are names of classes.
        x: examples, as `lmzoo.cli.examples` reads them.
        y: their labels.
        batch_size: int.
    """
    if not task.compiled:
        task.compile()
    labels = _numbered(y, {name: i for i, name in enumerate(task.class_names)}) if named else y
    # A task that learns without labels has its loss without them; its report may compare predictions with labels.
    labels = labels if task.needs_labels else None
    measured = task.evaluate(x, labels, batch_size, return_dict=True, verbose=int(Console().is_terminal))
    with in_parts(x, batch_size) as parts:
        found: Report = globals()[report](task, parts, y, batch_size=batch_size, **measured)
    return Report({**measured, **found.scores}, found.tables)


def _numbered(y: Any, numbers: dict[str, int]) -> Any:
    return numbers[y] if isinstance(y, str) else [_numbered(label, numbers) for label in y]


def _answers(task: Task, parts: Iterable[Inputs], batch_size: int) -> list[Any]:
    """The task's answer to each example."""
    return [answer for part in parts for answer in getattr(task, task.verb)(part, batch_size=batch_size)]


def report_classes(task: Task, parts: Iterable[Inputs], y: Sequence[str], batch_size: int, **_: float) -> Report:
    """See `compare_classes`."""
    return compare_classes(y, [found["label"] for found in _answers(task, parts, batch_size)], task.class_names)


def report_label_sets(
    task: Task, parts: Iterable[Inputs], y: Sequence[Sequence[str]], batch_size: int, **_: float
) -> Report:
    """See `compare_label_sets`."""
    predicted = [[found["label"] for found in answer] for answer in _answers(task, parts, batch_size)]
    return compare_label_sets(y, predicted, task.class_names)


def report_numbers(task: Task, parts: Iterable[Inputs], y: Sequence[float], batch_size: int, **_: float) -> Report:
    """See `compare_numbers`."""
    return compare_numbers(y, _answers(task, parts, batch_size))


def report_tags(task: Task, parts: Iterable[Inputs], y: Sequence[Sequence[str]], batch_size: int, **_: float) -> Report:
    """See `compare_tags`; words that were cut off count as outside of spans, or as wrong."""
    unseen = OUTSIDE if marks_spans(task.labels) else ""
    labels = [labels for part in parts for labels in _labels_of_words(task, part, unseen, batch_size)]
    return compare_tags(y, labels, task.class_names)


def _labels_of_words(task: Task, texts: Inputs, unseen: str, batch_size: int) -> Iterator[list[str]]:
    encoded = task.encode_inputs(texts)
    best = task.predict(encoded, batch_size, verbose=0).argmax(axis=-1)  # (n, T)
    for row, columns in zip(best, np.split(encoded.first, encoded.word_splits[1:-1]), strict=True):
        yield [task.class_names[row[column]] if column >= 0 else unseen for column in columns]


def report_answers(
    task: Task, parts: Iterable[Inputs], y: Sequence[Sequence[dict[str, Any]]], batch_size: int, **_: float
) -> Report:
    """See `squad_metrics`."""
    scores = squad_metrics(_answers(task, parts, batch_size), y)
    return Report({name: value for name, value in scores.items() if not name.endswith("total")})


def report_choices(task: Task, parts: Iterable[Inputs], y: Sequence[int], batch_size: int, **_: float) -> Report:
    """The accuracy."""
    chosen = [found["index"] for found in _answers(task, parts, batch_size)]
    return Report({"accuracy": float(np.mean(np.equal(chosen, y)))})


def report_masked(task: Task, parts: Iterable[Inputs], y: None, batch_size: int, loss: float, **_: float) -> Report:
    """The perplexity: the exponential of the loss."""
    return Report({"perplexity": float(np.exp(loss))})


def report_pairs(task: Task, parts: Iterable[Inputs], y: Sequence[float] | None, batch_size: int, **_: float) -> Report:
    """See `compare_numbers`, for labels and cosines; no scores without labels."""
    if y is None:
        return Report()
    cosines = []
    for firsts, seconds in parts:
        a, b = (task.embed(texts, batch_size) for texts in (firsts, seconds))  # (n, H)
        cosines.append((a * b).sum(axis=1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-12))
    return compare_numbers(y, np.concatenate(cosines))
