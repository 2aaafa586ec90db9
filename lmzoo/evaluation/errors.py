"""Where answers are wrong: the worst ones, whether probabilities can be trusted, and which examples are hard."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lmzoo.evaluation.reports import Cell, Cells, Judged, Report
from lmzoo.text.validate_text import is_text

_BINS = 15  # of probabilities, as in Guo et al. (2017)
_WORST = 20
_FEW = 8  # different numbers that are shown one by one; more are put in quarters
_MOST = 20  # values of a column; the rest are put together
_MISSING, _NONE = ("", "None", "nan", "NaN"), "(none)"

CURVE, CALIBRATION, WORST = "learning curve", "calibration", "worst"  # names of tables
LENGTH = "length"  # by which there is a table


class Calibration(NamedTuple):
    """How often answers are right, by the probability that the model gives them.

    Attributes:
        bounds: float (M + 1,), of the bins; a probability on a bound is in the lower bin.
        counts: int (M,), answers in each bin.
        confidence: float (M,), their mean probability; NaN for empty bins.
        accuracy: float (M,), the share of them that is right; NaN for empty bins.
        error: float, the expected calibration error: the mean difference of the two over all answers.

    Example: see `calibration`.
    """

    bounds: np.ndarray
    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    error: float


def calibration(probability: Any, right: Any, bins: int = _BINS) -> Calibration:
    """Return how far the probabilities of answers agree with how often these are right (Guo et al., 2017).

    https://arxiv.org/abs/1706.04599

    Args:
        probability: float (n,), of each answer.
        right: bool (n,), whether it is right.
        bins: int, M, of equal width.

    Raises:
        ValueError: if there are no answers, the two differ in number, or a probability is not between 0 and 1.

    Example:

    ```python
    from lmzoo.evaluation import calibration

    calibration([0.9, 0.9, 0.6, 0.6], [True, True, True, False]).error  # (0.1 * 2 + 0.1 * 2) / 4
    ```
    """
    probability, right = np.asarray(probability, "float64"), np.asarray(right, "float64")
    if probability.ndim != 1 or probability.shape != right.shape or not len(right):
        raise ValueError(
            f"Expected a probability for each answer, got shapes {probability.shape} and {right.shape}; both must be "
            "(n,), with n above 0."
        )
    if not ((probability >= 0) & (probability <= 1 + 1e-6)).all():
        raise ValueError("Probabilities must be between 0 and 1: pass those of `softmax`, not logits.")
    bounds = np.linspace(0, 1, bins + 1)
    place = np.clip(np.searchsorted(bounds, probability, side="left") - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    sums = [np.bincount(place, values, bins) for values in (probability, right)]
    confidence, accuracy = (np.where(count > 0, total / np.maximum(count, 1), np.nan) for total in sums)
    return Calibration(bounds, count, confidence, accuracy, float(np.abs(sums[0] - sums[1]).sum() / len(right)))


def add_errors(report: Report, texts: Sequence[str]) -> Report:
    """Return a report with the score `ece` and the tables "calibration", "worst" and "by length".

    Args:
        report: with the answers that it compared.
        texts: the text of each example.

    Raises:
        ValueError: if the report has no answers that are right or wrong.
    """
    judged = _judged(report)
    scores, tables = dict(report.scores), dict(report.tables)
    if judged.probability is not None:
        known = np.isfinite(judged.probability)
        if known.any():
            found = calibration(judged.probability[known], judged.error[known] == 0)
            scores["ece"], tables[CALIBRATION] = found.error, _calibration_table(found)
    tables[f"by {LENGTH}"] = _slices("characters", [len(text) for text in texts], judged)
    tables[WORST] = _worst(judged, texts)
    return replace(report, scores=scores, tables=tables)


def add_slices(report: Report, columns: Mapping[str, Sequence[Any]]) -> Report:
    """Return a report with a table of scores by the values of each column: numbers in quarters, if there are many.

    Args:
        report: with the answers that it compared.
        columns: by name, a value for each example.

    Raises:
        TypeError: for a column that is no list.
        ValueError: if a column has not one value for each example, or the report no answers.
    """
    judged = _judged(report)
    check_columns(columns, int(judged.example.max(initial=-1)) + 1 if judged.count is None else judged.count)
    return replace(
        report, tables={**report.tables, **{f"by {name}": _slices(name, v, judged) for name, v in columns.items()}}
    )


def check_columns(columns: Mapping[str, Sequence[Any]], count: int) -> None:
    """Check that each column has a value for each of `count` examples.

    Raises:
        TypeError: if `columns` is not a dict; for a column that is no list.
        ValueError: for another number of values.
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
    """Return a report with a `learning_curve`."""
    return replace(report, tables={**report.tables, CURVE: learning_curve(history)})


def learning_curve(history: Any) -> Cells:
    """Return a table of the loss and the metrics of each epoch.

    Args:
        history: what `fit` returned, or its `history`: lists of numbers by name.

    Raises:
        TypeError: for anything else.
        ValueError: for lists that are empty or differ in length.
    """
    history = getattr(history, "history", history)
    if not isinstance(history, Mapping):
        raise TypeError(f"`history` must be what `fit` returns, or its `history`, got {history!r:.60}.")
    lengths = {name: len(values) for name, values in history.items()}
    if len({*lengths.values()}) != 1 or not min(lengths.values()):
        raise ValueError(f"`history` must hold a number for each epoch under every name, got {lengths}.")
    rows: list[list[Cell]] = [
        [epoch, *map(float, row)] for epoch, row in enumerate(zip(*history.values(), strict=True), start=1)
    ]
    return ["epoch", *map(str, history)], rows


def report(task: Any, x: Any, y: Any = None, **arguments: Any) -> Report:
    """Where a task errs: its `report` with the most confident mistakes, calibration and scores by length.

    Args:
        task: of `lmzoo.models`, whose answers can be right or wrong.
        x: texts in memory.
        y: labels.
        **arguments: of the task's `report`, such as `columns` and `history`.

    Raises:
        TypeError: as the task's `report`; for a model that has none.
        ValueError: as the task's `report`.

    Example:

    ```python
    import lmzoo

    task = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    found = lmzoo.evaluation.report(task, ["A fine film.", "A dull film."], ["good", "bad"], verbose=0)
    list(found.tables)  # with "worst", "by length" and "calibration"
    ```
    """
    if not hasattr(task, "report"):
        raise TypeError(f"Expected a task of `lmzoo.models`, got {task!r:.60}.")
    return task.report(x, y, errors=True, **arguments)


def _judged(report: Report) -> Judged:
    if report.judged is None:
        raise ValueError("This task has no answers that are right or wrong, which a report of errors needs.")
    return report.judged


def _calibration_table(found: Calibration) -> Cells:
    names = [f"{low:.2f}-{high:.2f}" for low, high in itertools.pairwise(found.bounds)]
    columns = (array.tolist() for array in (found.counts, found.confidence, found.accuracy))
    rows: list[list[Cell]] = [[*row] for row in zip(names, *columns, strict=True) if row[1]]
    return ["probability", "count", "confidence", "accuracy"], rows


def _worst(judged: Judged, texts: Sequence[str]) -> Cells:
    """Return the wrong answers with the highest probability, or the numbers that are furthest off."""
    certain = np.zeros(len(judged.error)) if judged.probability is None else np.nan_to_num(judged.probability)
    order = np.lexsort((-certain, -judged.error))
    rows: list[list[Cell]] = []
    for i in order[judged.error[order] > 0][:_WORST].tolist():
        text = texts[judged.example[i]]
        if judged.places is not None:
            start, end = judged.places[i].tolist()
            text = f"{text[:start]}[{text[start:end]}]{text[end:]}"
        last = float(judged.error[i] if judged.probability is None else judged.probability[i])
        rows.append([int(judged.example[i]), judged.actual[i], judged.predicted[i], last, text])
    return ["example", "label", "predicted", "error" if judged.probability is None else "probability", "text"], rows


def _slices(name: str, values: Sequence[Any], judged: Judged) -> Cells:
    rows: list[list[Cell]] = []
    for value, chosen in _groups(values):
        inside = chosen[judged.example]
        if not inside.any():
            continue
        error = float(judged.error[inside].mean())
        if judged.probability is None:
            rows.append([value, int(inside.sum()), error])
        else:
            known = judged.probability[inside & np.isfinite(judged.probability)]
            rows.append([value, int(inside.sum()), 1 - error, float(known.mean()) if len(known) else float("nan")])
    return [name, "count", *(["mean error"] if judged.probability is None else ["accuracy", "confidence"])], rows


def _groups(values: Sequence[Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names of groups, and which examples belong to them: bool (n,)."""
    numbers = np.array([*map(_number, values)], "float64")
    known = np.isfinite(numbers)
    names = np.array([_NONE if str(value) in _MISSING else str(value) for value in values], object)
    if (known | (names == _NONE)).all() and len(np.unique(numbers[known])) > _FEW:
        edges = np.unique(np.quantile(numbers[known], [0, 0.25, 0.5, 0.75, 1]))
        quarter = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
        for k in range(len(edges) - 1):
            chosen = known & (quarter == k)
            if chosen.any():
                yield f"{numbers[chosen].min():g} to {numbers[chosen].max():g}", chosen
        if not known.all():
            yield _NONE, ~known
        return
    frequent = [name for name, _ in Counter(names).most_common(_MOST)]
    if (known | (names == _NONE)).all():
        frequent.sort(key=lambda name: (name == _NONE, _number(name)))
    for name in frequent:
        yield name, names == name
    if (rest := ~np.isin(names, frequent)).any():
        yield "(others)", rest


def _number(value: Any) -> float:
    """Return the number that a value is, or that a string holds, as in CSV files; else NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
