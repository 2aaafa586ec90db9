"""Computation and output of the scores of `lmzoo evaluate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from lmzoo.data.examples import ExampleStream
from lmzoo.evaluation.reports import Report
from lmzoo.files.atomic import atomic_file
from lmzoo.tasks import Task
from lmzoo.text.validate_text import TextWarningFilter
from lmzoo_cli.examples import Inputs, Labels, count_examples, iterate_in_parts
from lmzoo_cli.output import show, show_status, to_json
from lmzoo_cli.task_kinds import Kind


def score(kind: Kind, task: Task, x: Inputs, y: Labels, batch_size: int) -> Report:
    """Evaluate a task on labeled examples, showing progress bars, and return its report.

    The report on a stream has only the loss and the metrics, since the answers to all of its examples may not fit into
    memory.

    Args:
        kind: kind of the task.
        task: task to evaluate.
        x: inputs, returned by the readers of `lmzoo_cli.examples`.
        y: labels, returned by the same reader.
        batch_size: int, number of examples in a batch.
    """
    if not task.compiled:
        task.compile()
    if isinstance(x, ExampleStream):
        return Report(task.evaluate(x, batch_size=batch_size, return_dict=True))
    labels = y
    if kind.reading.names and task.labels is None:  # the classes have no names, but the file's labels are strings
        labels = _replace_names(y, {name: class_index for class_index, name in enumerate(task.class_names)})
    # The loss of a task that trains without labels needs none, but its answers may still be compared with labels.
    loss_labels = labels if task.needs_labels else None
    num_examples = count_examples(x)
    warning_filter = TextWarningFilter()
    with (
        show_status(f"Compiling and evaluating on {num_examples:,} examples"),
        warning_filter.once_per_reason(),
    ):
        metrics = task.measure(x, loss_labels, batch_size, verbose=int(Console().is_terminal))
    with (
        show_status(f"Predicting {num_examples:,} examples"),
        iterate_in_parts(x, batch_size) as parts,
        warning_filter.once_per_reason(),
    ):
        report = task.compare(parts, labels, batch_size=batch_size, **metrics)
    return replace(report, scores={**metrics, **report.scores})


def show_report(report: Report) -> None:
    """Print the scores of a report, then its tables."""
    show(["score", "value"], list(report.scores.items()))
    for titles, rows in report.tables.values():
        show(titles, rows)


def write_report(path: Path, content: dict[str, object], report: Report) -> None:
    """Write a report to a JSON file, after the entries of `content`."""
    tables = {
        name: [dict(zip(titles, row, strict=True)) for row in rows] for name, (titles, rows) in report.tables.items()
    }
    with atomic_file(path) as temporary_path:
        temporary_path.write_text(to_json({**content, "scores": report.scores, **tables}, indent=1), "utf-8")


def _replace_names(labels: Any, index_by_name: dict[str, int]) -> Any:
    """Replace class names in nested lists of labels with class indices."""
    return (
        index_by_name[labels] if isinstance(labels, str) else [_replace_names(label, index_by_name) for label in labels]
    )
