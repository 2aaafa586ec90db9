"""What `Task.report` and `lmzoo evaluate` add to the scores of a task if they are asked for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lmzoo.evaluation.errors import LENGTH, add_errors, add_learning_curve, add_slices, check_columns, learning_curve
from lmzoo.evaluation.reports import Report
from lmzoo.tasks.base.examples import Texts
from lmzoo.tasks.inputs import list_rows
from lmzoo.text import Encoded


def perplexity_report(loss: float) -> Report:
    """Return the perplexity: the exponential of the loss of `evaluate`, which is a mean over batches."""
    return Report({"perplexity": math.exp(loss)})


def check_additions(x: Texts, errors: bool, columns: Mapping[str, Sequence[Any]] | None, history: Any = None) -> None:
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
    report: Report, x: Texts, errors: bool, columns: Mapping[str, Sequence[Any]] | None, history: Any = None
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
