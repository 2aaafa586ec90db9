"""Scores of `lmzoo evaluate`, printed and written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from lmzoo.evaluation.reports import Report
from lmzoo.files.atomic import atomic_file
from lmzoo.tasks import Task
from lmzoo_cli.examples import Inputs, Labels, count_examples, iterate_in_parts
from lmzoo_cli.output import show, show_status, to_json
from lmzoo_cli.task_kinds import Kind


def score(kind: Kind, task: Task, x: Inputs, y: Labels, batch_size: int) -> Report:
    """Return the same as `Task.report`, and show progress bars.

    Args:
        kind: of the task.
        task: the model.
        x: examples, as `lmzoo_cli.examples` reads them.
        y: their labels.
        batch_size: int.
    """
    if not task.compiled:
        task.compile()
    labels = y
    if kind.reading.names:
        labels = _replace_names(y, {name: i for i, name in enumerate(task.class_names)})
    # A task that learns without labels has its loss without them; its answers may still be compared with labels.
    learned = labels if task.needs_labels else None
    count = count_examples(x)
    with show_status(f"Compiling and evaluating on {count:,} examples"):
        measured = task.evaluate(x, learned, batch_size, return_dict=True, verbose=int(Console().is_terminal))
    with show_status(f"Predicting {count:,} examples"), iterate_in_parts(x, batch_size) as parts:
        report = task.compare(parts, labels, batch_size=batch_size, **measured)
    return replace(report, scores={**measured, **report.scores})


def show_report(report: Report) -> None:
    """Print the scores, and then the tables."""
    show(["score", "value"], list(report.scores.items()))
    for titles, rows in report.tables.values():
        show(titles, rows)


def write_report(path: Path, content: dict[str, object], report: Report) -> None:
    """Write `content` and a report into a file of JSON."""
    tables = {
        name: [dict(zip(titles, row, strict=True)) for row in rows] for name, (titles, rows) in report.tables.items()
    }
    with atomic_file(path) as temporary:
        temporary.write_text(to_json({**content, "scores": report.scores, **tables}, indent=1), "utf-8")


def _replace_names(y: Any, numbers: dict[str, int]) -> Any:
    """Return labels, which may be nested lists, with numbers in place of names."""
    return numbers[y] if isinstance(y, str) else [_replace_names(label, numbers) for label in y]
