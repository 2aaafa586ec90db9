"""Error analysis: the worst predictions, calibration, and scores by groups of examples."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lmzoo.evaluation.reports import Cell, Cells, Judged, Report
from lmzoo.text.validate_text import is_text

_NUM_BINS = 15  # probability bins, as in Guo et al. (2017)
_MAX_WORST = 20  # rows of the table of the worst predictions
_MAX_SINGLE_NUMBERS = 8  # up to this many distinct numbers form one group each; more are grouped by quartile
_MAX_GROUPS = 20  # this many of the most frequent values form one group each; rarer values share a group
_MISSING = ("", "None", "nan", "NaN", "<NA>", "NaT")
_NONE = "(none)"
NOT_JUDGED_MESSAGE = (
    "This task has no answers that are right or wrong: make its report without `errors` and `columns` or, on the "
    "command line, with `lmzoo evaluate`."
)

# Names of tables:
CURVE = "learning curve"
CALIBRATION = "calibration"
WORST = "worst"
LENGTH = "length"  # in "by length"


class Calibration(NamedTuple):
    """The accuracy of predictions in bins of predicted probability.

    Attributes:
        bounds: float (M + 1,), bounds of the M bins; a probability on a bound is in the lower bin.
        counts: int (M,), number of predictions in each bin.
        confidence: float (M,), mean probability of the predictions in each bin; NaN for empty bins.
        accuracy: float (M,), fraction of correct predictions in each bin; NaN for empty bins.
        error: float, expected calibration error: the absolute difference between confidence and accuracy, averaged over
            bins, weighted by their counts.

    Example: see `calibration`.
    """

    bounds: np.ndarray
    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    error: float


def calibration(probability: Any, right: Any, bins: int = _NUM_BINS) -> Calibration:
    """Compare the probabilities of predictions with their accuracy (Guo et al., 2017).

    https://arxiv.org/abs/1706.04599

    Args:
        probability: float (n,), probability of each of n predictions.
        right: bool (n,), whether each prediction is right.
        bins: int, number of bins, which have equal width.

    Raises:
        ValueError: If there are no predictions, the arrays differ in shape, or a probability is not between 0 and 1.

    Example:

    ```python
    from lmzoo.evaluation import calibration

    calibration([0.9, 0.9, 0.6, 0.6], [True, True, True, False]).error  # (0.1 * 2 + 0.1 * 2) / 4
    ```
    """
    probability = np.asarray(probability, "float64")
    right = np.asarray(right, "float64")
    if probability.ndim != 1 or probability.shape != right.shape or not len(right):
        raise ValueError(
            f"Expected a probability for each answer, got shapes {probability.shape} and {right.shape}; both must be "
            "(n,), with n above 0."
        )
    if not ((probability >= 0) & (probability <= 1 + 1e-6)).all():
        raise ValueError("Probabilities must be between 0 and 1: pass those of `softmax`, not logits.")
    bounds = np.linspace(0, 1, bins + 1)
    bin_indices = np.clip(np.searchsorted(bounds, probability, side="left") - 1, 0, bins - 1)
    counts = np.bincount(bin_indices, minlength=bins)
    sums = [np.bincount(bin_indices, values, bins) for values in (probability, right)]
    confidence, accuracy = (np.where(counts > 0, total / np.maximum(counts, 1), np.nan) for total in sums)
    return Calibration(bounds, counts, confidence, accuracy, float(np.abs(sums[0] - sums[1]).sum() / len(right)))


def add_errors(report: Report, texts: Sequence[str]) -> Report:
    """Return a report with the score `ece` and the tables "calibration", "worst" and "by length" added.

    Without probabilities of predictions, `ece` and "calibration" are left out.

    Args:
        report: `Report` with judged predictions.
        texts: list of strings, the text of each example.

    Raises:
        ValueError: If the report has no judged predictions.
    """
    judged = _get_judged(report)
    scores = dict(report.scores)
    tables = dict(report.tables)
    if judged.probability is not None:
        has_probability = np.isfinite(judged.probability)
        if has_probability.any():
            calibration_result = calibration(judged.probability[has_probability], judged.error[has_probability] == 0)
            scores["ece"] = calibration_result.error
            tables[CALIBRATION] = _make_calibration_table(calibration_result)
    tables[f"by {LENGTH}"] = _make_slice_table("characters", [len(text) for text in texts], judged)
    tables[WORST] = _make_worst_table(judged, texts)
    return replace(report, scores=scores, tables=tables)


def add_slices(report: Report, columns: Mapping[str, Sequence[Any]]) -> Report:
    """Return a report with a table added for each column: scores by value, or by quartile for many numbers.

    Args:
        report: `Report` with judged predictions.
        columns: dict from column names to lists with a value for each example.

    Raises:
        TypeError: If `columns` is not a dict, or a column is not a list.
        ValueError: If a column does not have one value per example, or the report has no judged predictions.
    """
    judged = _get_judged(report)
    check_columns(columns, int(judged.example.max(initial=-1)) + 1 if judged.count is None else judged.count)
    return replace(
        report,
        tables={
            **report.tables,
            **{f"by {name}": _make_slice_table(name, values, judged) for name, values in columns.items()},
        },
    )


def check_columns(columns: Mapping[str, Sequence[Any]], count: int) -> None:
    """Check that each column has a value for each of `count` examples.

    Raises:
        TypeError: If `columns` is not a dict, or a column is not a list.
        ValueError: If a column does not have `count` values.
    """
    if not isinstance(columns, Mapping):
        raise TypeError(
            f"`columns` must be a dict of lists, such as {{'source': table['source']}}, got {columns!r:.60}."
        )
    for name, values in columns.items():
        if is_text(values) or not hasattr(values, "__len__"):
            raise TypeError(f"The column {name!r} must be a list, got {values!r:.60}.")
        if len(values) != count:
            raise ValueError(f"The column {name!r} has {len(values)} values for {count} examples.")


def add_learning_curve(report: Report, history: Any) -> Report:
    """Return a report with the table "learning curve" added, from the history of `fit`."""
    return replace(report, tables={**report.tables, CURVE: learning_curve(history)})


def learning_curve(history: Any) -> Cells:
    """Return a table of the loss and metrics in each epoch.

    If there are fewer validation scores than epochs, they belong to every k-th epoch, as with `validation_freq=k`, and
    the other epochs have NaN.

    Args:
        history: result of `fit`, or its `history`: a dict from names to lists of numbers, from the first epoch on.

    Raises:
        TypeError: If the type of `history` is not supported.
        ValueError: If lists are empty or differ in length, except for validation scores of every k-th epoch.
    """
    epoch_indices = getattr(history, "epoch", None)  # they do not begin at 0 after `initial_epoch` or resuming
    history = getattr(history, "history", history)
    if not isinstance(history, Mapping):
        raise TypeError(f"`history` must be what `fit` returns, or its `history`, got {history!r:.60}.")
    lengths = {name: len(values) for name, values in history.items()}
    if epoch_indices is None:
        epoch_indices = range(max(lengths.values(), default=0))
    epochs = np.array([*epoch_indices], "int64") + 1
    optional_columns = [_place_scores(str(name), values, epochs) for name, values in history.items()]
    columns = [column for column in optional_columns if column is not None]
    if not columns or len(columns) < len(optional_columns):
        raise ValueError(f"`history` must hold a number for each epoch under every name, got {lengths}.")
    rows: list[list[Cell]] = [[*row] for row in zip(epochs.tolist(), *columns, strict=True)]
    return ["epoch", *map(str, history)], rows


def _place_scores(name: str, scores: Sequence[Any], epochs: np.ndarray) -> list[float] | None:
    """Return a score for each epoch, NaN where there is none, or None if the epochs of the scores are unclear.

    Args:
        name: name of the scores.
        scores: numbers of all epochs or, for validation scores, of every k-th epoch.
        epochs: int (n,), numbers of the epochs, from 1.
    """
    if not len(scores):
        return None
    if len(scores) == len(epochs):
        return [*map(float, scores)]
    masks = {tuple((epochs % k == 0).tolist()) for k in range(1, 1 + int(epochs.max(initial=0)))}
    possible_masks = [mask for mask in masks if sum(mask) == len(scores)]
    if not name.startswith("val_") or len(possible_masks) != 1:
        return None
    column = np.full(len(epochs), np.nan)
    column[np.array(possible_masks[0])] = [*map(float, scores)]
    return column.tolist()


def report(task: Any, x: Any, y: Any = None, **arguments: Any) -> Report:
    """Evaluate a task, and return a report that includes its most confident mistakes, calibration and scores by length.

    Args:
        task: task of `lmzoo.models` whose predictions can be right or wrong.
        x: texts in memory.
        y: labels.
        **arguments: further arguments of the task's `report`, such as `columns` and `history`.

    Raises:
        TypeError: If `task` has no `report`; see also `lmzoo.models.Task.report`.
        ValueError: See `lmzoo.models.Task.report`.

    Example:

    ```python
    import lmzoo

    task = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    report = lmzoo.evaluation.report(task, ["A fine film.", "A dull film."], ["good", "bad"], verbose=0)
    list(report.tables)  # with "worst", "by length" and "calibration"
    ```
    """
    if not hasattr(task, "report"):
        raise TypeError(f"Expected a task of `lmzoo.models`, got {task!r:.60}.")
    return task.report(x, y, errors=True, **arguments)


def _get_judged(report: Report) -> Judged:
    """Return the judged predictions of a report.

    Raises:
        ValueError: If the report has no judged predictions.
    """
    if report.judged is None:
        raise ValueError(NOT_JUDGED_MESSAGE)
    return report.judged


def _make_calibration_table(calibration_result: Calibration) -> Cells:
    """Return a calibration table with a row for each bin that is not empty."""
    names = [f"{low:.2f}-{high:.2f}" for low, high in itertools.pairwise(calibration_result.bounds)]
    columns = (
        array.tolist()
        for array in (calibration_result.counts, calibration_result.confidence, calibration_result.accuracy)
    )
    rows: list[list[Cell]] = [[*row] for row in zip(names, *columns, strict=True) if row[1]]
    return ["probability", "count", "confidence", "accuracy"], rows


def _make_worst_table(judged: Judged, texts: Sequence[str]) -> Cells:
    """Return a table of the most confident wrong predictions or, for numeric predictions, of the largest errors."""
    confidence = np.zeros(len(judged.error)) if judged.probability is None else np.nan_to_num(judged.probability)
    order = np.lexsort((-confidence, -judged.error))
    rows: list[list[Cell]] = []
    for i in order[judged.error[order] > 0][:_MAX_WORST].tolist():
        text = texts[judged.example[i]]
        if judged.places is not None:
            start, end = judged.places[i].tolist()
            text = f"{text[:start]}[{text[start:end]}]{text[end:]}"
        probability_or_error = float(judged.error[i] if judged.probability is None else judged.probability[i])
        rows.append([int(judged.example[i]), judged.actual[i], judged.predicted[i], probability_or_error, text])
    return ["example", "label", "predicted", "error" if judged.probability is None else "probability", "text"], rows


def _make_slice_table(name: str, values: Sequence[Any], judged: Judged) -> Cells:
    """Return a table of scores by group of examples with equal or similar values in a column.

    Args:
        name: title of the column.
        values: the column's value of each example.
        judged: the predictions.
    """
    rows: list[list[Cell]] = []
    for value, in_group in _group_examples(values):
        is_selected = in_group[judged.example]
        if not is_selected.any():
            continue
        mean_error = float(judged.error[is_selected].mean())
        if judged.probability is None:
            rows.append([value, int(is_selected.sum()), mean_error])
        else:
            probabilities = judged.probability[is_selected & np.isfinite(judged.probability)]
            confidence = float(probabilities.mean()) if len(probabilities) else float("nan")
            rows.append([value, int(is_selected.sum()), 1 - mean_error, confidence])
    return [name, "count", *(["mean error"] if judged.probability is None else ["accuracy", "confidence"])], rows


def _group_examples(values: Sequence[Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Group n examples by value, or many numbers by quartile; yield each group's name and mask, bool (n,)."""
    numeric_values = np.array([*map(_to_number, values)], "float64")
    is_number = np.isfinite(numeric_values)
    names = np.array([_NONE if str(value) in _MISSING else str(value) for value in values], object)
    if (is_number | (names == _NONE)).all() and len(np.unique(numeric_values[is_number])) > _MAX_SINGLE_NUMBERS:
        bounds = np.unique(np.quantile(numeric_values[is_number], [0, 0.25, 0.5, 0.75, 1]))
        quartile_indices = np.clip(np.searchsorted(bounds, numeric_values, side="right") - 1, 0, len(bounds) - 2)
        for k in range(len(bounds) - 1):
            is_selected = is_number & (quartile_indices == k)
            if is_selected.any():
                yield f"{numeric_values[is_selected].min():g} to {numeric_values[is_selected].max():g}", is_selected
        if not is_number.all():
            yield _NONE, ~is_number
        return
    frequent_names = [name for name, _ in Counter(names).most_common(_MAX_GROUPS)]
    if (is_number | (names == _NONE)).all():
        frequent_names.sort(key=lambda name: (name == _NONE, _to_number(name)))
    for name in frequent_names:
        yield name, names == name
    if (is_other := ~np.isin(names, frequent_names)).any():
        yield "(others)", is_other


def _to_number(value: Any) -> float:
    """Convert a number, or a string such as "0.5", to a float; return NaN for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
