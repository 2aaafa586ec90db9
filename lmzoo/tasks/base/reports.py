"""Optional tables of `Task.report` and `lmzoo evaluate`: errors, slices and learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmzoo.evaluation.errors import (
    LENGTH,
    NOT_JUDGED_MESSAGE,
    add_errors,
    add_learning_curve,
    add_slices,
    check_columns,
    learning_curve,
)
from lmzoo.evaluation.reports import Report
from lmzoo.tasks.base.examples import Texts
from lmzoo.tasks.inputs import list_rows
from lmzoo.text import Encoded
from lmzoo.text.validate_text import clean_texts, collect_warnings


def check_optional_tables(
    x: Texts,
    errors: bool,
    columns: Mapping[str, Sequence[Any]] | None,
    judged: bool,
    history: Any = None,
    pairs: bool = True,
) -> None:
    """Check the arguments for the optional tables of a report, before the task is evaluated.

    The arguments are the same as for `add_optional_tables`; and `judged`, whether answers can be right or wrong.

    Raises:
        TypeError: If `errors` is True for encoded examples, which hold no texts to show, or a column is not a list.
        ValueError: If there are `errors` or `columns` although `judged` is False, or `errors` is True and a column is
            named "length"; see also `add_optional_tables`.
    """
    if (errors or columns) and not judged:
        raise ValueError(NOT_JUDGED_MESSAGE)
    if errors and isinstance(x, Encoded):
        raise TypeError("Errors are shown with their texts: pass these as they are, not encoded.")
    if errors and columns and LENGTH in columns:
        raise ValueError(f"The column {LENGTH!r} must have another name: there is a table by the length of texts.")
    if columns is not None and not isinstance(x, Encoded):
        check_columns(columns, len(list_rows(x, pairs)))
    if history is not None:
        learning_curve(history)


def add_optional_tables(
    report: Report,
    x: Texts,
    errors: bool,
    columns: Mapping[str, Sequence[Any]] | None,
    history: Any = None,
    pairs: bool = True,
) -> Report:
    """Return a report with its optional tables: errors, slices by column, and the learning curve.

    Args:
        report: report to add the tables to.
        x: examples, not encoded.
        errors: whether to add the tables of errors; see `add_errors`.
        columns: dict from column names to values, one per example, for tables of slices; or None; see `add_slices`.
        history: result of `fit`, for the learning curve, or None; see `add_learning_curve`.
        pairs: whether a tuple of examples holds two columns; see `list_rows`.

    Raises:
        TypeError: See `add_slices` and `add_learning_curve`.
        ValueError: See `add_errors`, `add_slices` and `add_learning_curve`.
    """
    if errors:
        report = add_errors(report, _format_examples(x, pairs))
    if columns:
        report = add_slices(report, columns)
    return report if history is None else add_learning_curve(report, history)


def _format_examples(x: Texts, pairs: bool) -> list[str]:
    """Format each example as one string: both texts of a pair, all words, or a prompt followed by its choices.

    Invalid Unicode is replaced, as in the model's input.
    """

    def to_string(part: Any, separator: str = " / ") -> str:
        if isinstance(part, bytes):
            return part.decode(errors="replace")
        return part if isinstance(part, str) else separator.join(to_string(inner_part, " ") for inner_part in part)

    strings = [to_string(row, " / " if pairs and isinstance(row, tuple) else " ") for row in list_rows(x, pairs)]
    with collect_warnings():  # discard warnings, which were already issued when the texts were encoded
        return clean_texts(strings)
