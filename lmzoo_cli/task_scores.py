"""The scores of `lmzoo evaluate`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console

from lmzoo.evaluation.reports import Report
from lmzoo.tasks import Task
from lmzoo_cli.examples import Inputs, Labels
from lmzoo_cli.output import announced, count_of, in_parts


def score(task: Task, named: bool, x: Inputs, y: Labels, batch_size: int) -> Report:
    """What `Task.report` returns, with progress bars.

    Args:
        task: the model.
        named: whether labels are names of classes.
        x: examples, as `lmzoo_cli.examples` reads them.
        y: their labels.
        batch_size: int.
    """
    if not task.compiled:
        task.compile()
    labels = _numbered(y, {name: i for i, name in enumerate(task.class_names)}) if named else y
    # A task that learns without labels has its loss without them; its answers may still be compared with labels.
    learned = labels if task.needs_labels else None
    with announced(f"Compiling and evaluating on {count_of(x):,} examples"):
        measured = task.evaluate(x, learned, batch_size, return_dict=True, verbose=int(Console().is_terminal))
    with announced(f"Predicting {count_of(x):,} examples"), in_parts(x, batch_size) as parts:
        found = task.compare(parts, labels, batch_size=batch_size, **measured)
    return replace(found, scores={**measured, **found.scores})


def _numbered(y: Any, numbers: dict[str, int]) -> Any:
    return numbers[y] if isinstance(y, str) else [_numbered(label, numbers) for label in y]
