"""Parts of `Task.report` and `lmzoo evaluate`: losses per token, and tables of errors, slices and learning curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from lmzoo.common.progress import progress_bar
from lmzoo.evaluation.errors import LENGTH, add_errors, add_learning_curve, add_slices, check_columns, learning_curve
from lmzoo.evaluation.reports import Report
from lmzoo.tasks.base.examples import BatchOptions, Texts
from lmzoo.tasks.base.prediction import suppress_retracing_warnings
from lmzoo.tasks.inputs import list_rows, read_inputs
from lmzoo.text import Encoded


def measure_by_token(task: Any, x: Any, batch_size: int, verbose: bool | int | str = "auto") -> dict[str, float]:
    """Return the loss and metrics of a language model on texts, with the loss averaged over all tokens.

    `evaluate` averages the losses of batches, weighted by their sequences, so its result depends on the batch size.

    Args:
        task: a task whose batches hold a weight for each token.
        x: texts, in memory or streamed.
        batch_size: int, sequences per batch.
        verbose: whether to show a progress bar.
    """
    batches = task.batches(read_inputs(x), BatchOptions(batch_size, "sorted", verbose=verbose != 0))[0]
    return measure_batches(task, batches, verbose)


def measure_batches(task: Any, batches: Any, verbose: bool | int | str = "auto") -> dict[str, float]:
    """Return the loss and metrics of a language model on batches, with the loss averaged over all tokens.

    Args:
        task: a task whose batches hold a weight for each token.
        batches: the batches, as `Task.batches` returns them.
        verbose: whether to show a progress bar.
    """
    # `test_on_batch` resets all metrics before each batch. Their variables are sums over the tokens of a batch.
    variables: list[keras.Variable] = []
    sums: list[np.ndarray] = []
    total = tokens = 0.0
    bar = progress_bar("Evaluating", batches.num_batches, "batches", show=verbose != 0)
    with suppress_retracing_warnings(), bar as advance:
        for features, targets, weights in batches.batches():
            metrics = task.test_on_batch(features, targets, weights, return_dict=True)
            variables = task.metrics_variables
            values = [keras.ops.convert_to_numpy(variable) for variable in variables]
            sums = [old + new for old, new in zip(sums, values, strict=True)] if sums else values
            count = float(weights.sum())
            total += float(metrics["loss"]) * count
            tokens += count
            advance(1)
    for variable, value in zip(variables, sums, strict=True):
        variable.assign(value)
    metrics = {name: float(value) for name, value in task.get_metrics_result().items()}
    return {**metrics, "loss": total / tokens if tokens else math.nan}


def make_perplexity_report(loss: float) -> Report:
    """Return a report with the perplexity of a model whose mean cross-entropy per token is `loss`."""
    return Report({"perplexity": math.exp(loss)})


def check_optional_tables(
    x: Texts, errors: bool, columns: Mapping[str, Sequence[Any]] | None, history: Any = None
) -> None:
    """Check the arguments for the optional tables of a report, before the task is evaluated.

    Raises:
        TypeError: for `errors` with encoded examples, which hold no texts to show; for a column that is not a list.
        ValueError: see `add_optional_tables`; also for a column named "length" together with `errors`.
    """
    if errors and isinstance(x, Encoded):
        raise TypeError("Errors are shown with their texts: pass these as they are, not encoded.")
    if errors and columns and LENGTH in columns:
        raise ValueError(f"The column {LENGTH!r} must have another name: there is a table by the length of texts.")
    if columns is not None and not isinstance(x, Encoded):
        check_columns(columns, len(list_rows(x)))
    if history is not None:
        learning_curve(history)


def add_optional_tables(
    report: Report, x: Texts, errors: bool, columns: Mapping[str, Sequence[Any]] | None, history: Any = None
) -> Report:
    """Return a report with its optional tables: errors, slices by column, and the learning curve.

    Args:
        report: report to add the tables to.
        x: examples, not encoded.
        errors: whether to add the tables of errors; see `add_errors`.
        columns: values by column, for tables of slices, or None; see `add_slices`.
        history: result of `fit`, for the learning curve, or None; see `add_learning_curve`.

    Raises:
        TypeError: see `add_slices` and `add_learning_curve`.
        ValueError: see `add_errors`, `add_slices` and `add_learning_curve`.
    """
    if errors:
        report = add_errors(report, _format_examples(x))
    if columns:
        report = add_slices(report, columns)
    return report if history is None else add_learning_curve(report, history)


def _format_examples(x: Texts) -> list[str]:
    """Format each example as one string: both texts of a pair, all words, or a prompt followed by its choices."""

    def to_string(part: Any, separator: str = " / ") -> str:
        if isinstance(part, bytes):
            return part.decode(errors="replace")
        return part if isinstance(part, str) else separator.join(to_string(inner, " ") for inner in part)

    return [to_string(row, " / " if isinstance(row, tuple) else " ") for row in list_rows(x)]
