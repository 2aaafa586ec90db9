"""Reports on how well predictions agree with labels: what `Task.report` returns and `lmzoo evaluate` prints."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmzoo.common.span_marks import SpanScheme
from lmzoo.text.span_labels import spans_of

_LARGEST_CONFUSION = 12  # classes of the largest matrix that fits on a screen
_WIDEST = 60  # characters of a cell in columns of text

Cell = str | int | float
Cells = tuple[list[str], list[list[Cell]]]  # titles of columns, and rows


@dataclass(frozen=True)
class Judged:
    """The answers that a report compares with labels, one after another; a text may have several.

    Attributes:
        example: int (a,), the number of the example of each answer.
        actual: a labels.
        predicted: a answers.
        error: float (a,), 1 for wrong answers and 0 for right ones; of numbers, how far they are off.
        probability: float (a,), of the answers; None for numbers, NaN where there is none.
        places: the first character of each word that has a label, and the one after its last, int (a, 2); None if
            answers are to whole texts.
        count: the number of examples; None if the last one has an answer.

    Example:

    ```python
    import lmzoo

    classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    classifier.report(["A fine film.", "Dull."], ["good", "bad"], verbose=0).judged.error  # float (2,)
    ```
    """

    example: np.ndarray
    actual: Sequence[str | float]
    predicted: Sequence[str | float]
    error: np.ndarray
    probability: np.ndarray | None = None
    places: np.ndarray | None = None
    count: int | None = None

    @classmethod
    def of_classes(
        cls, actual: Sequence[str], predicted: Sequence[str], probability: Sequence[float] | np.ndarray
    ) -> Judged:
        """Return one answer for each example, right if it is the label."""
        error = np.array([a != b for a, b in zip(actual, predicted, strict=True)], "float64")
        return cls(np.arange(len(error)), actual, predicted, error, np.asarray(probability, "float64"))

    @classmethod
    def of_numbers(cls, actual: Any, predicted: Any) -> Judged:
        """Return one number for each example."""
        labels, answers = (np.asarray(side, "float64").reshape(-1) for side in (actual, predicted))
        return cls(np.arange(len(labels)), labels.tolist(), answers.tolist(), np.abs(labels - answers))


@dataclass
class Report:
    """Scores and tables by name; `str` and `print` make columns of text of them.

    Attributes:
        scores: numbers by name.
        tables: titles of columns, and rows, by name.
        judged: the single answers, where a task has answers that can be right or wrong.

    Example:

    ```python
    import lmzoo

    classifier = lmzoo.models.TextClassifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
    report = classifier.report(["A fine film.", "Dull."], ["good", "bad"], verbose=0)
    report.scores["accuracy"], report.tables["confusion"]
    ```
    """

    scores: dict[str, float] = field(default_factory=dict)
    tables: dict[str, Cells] = field(default_factory=dict)
    judged: Judged | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        """Return all scores, and then each table, with columns of equal width."""
        scores: list[list[Cell]] = [[name, score] for name, score in self.scores.items()]
        return "\n\n".join(
            _text([titles, *rows]) for titles, rows in [(["score", "value"], scores), *self.tables.values()]
        )


def compare_classes(actual: Sequence[str], predicted: Sequence[str], names: Sequence[str]) -> Report:
    """Compute accuracy, macro F1, Matthews' correlation for two classes, scores by class, and the confusion matrix.

    Macro F1 is the mean over the classes that occur in labels or predictions; undefined scores are 0.

    Example:

    ```python
    from lmzoo.evaluation.reports import compare_classes

    compare_classes(["bad", "bad", "good"], ["bad", "good", "good"], ["bad", "good"]).scores["accuracy"]  # 0.67
    ```
    """
    from sklearn import metrics

    confusion = metrics.confusion_matrix(actual, predicted, labels=names)  # [actual, predicted]
    scores = {
        "accuracy": float(metrics.accuracy_score(actual, predicted)),
        "macro_f1": float(metrics.f1_score(actual, predicted, average="macro", zero_division=0)),
    }
    if len(names) == 2:
        alike = len({*actual, *predicted}) < 2  # scikit-learn warns if there is only one class, and also returns 0
        scores["mcc"] = 0.0 if alike else float(metrics.matthews_corrcoef(actual, predicted))
    by_class = metrics.precision_recall_fscore_support(actual, predicted, labels=names, zero_division=0)
    tables = {"classes": _table("class", names, by_class)}
    if len(names) <= _LARGEST_CONFUSION:
        matrix: list[list[Cell]] = [[name, *counts] for name, counts in zip(names, confusion.tolist(), strict=True)]
        tables["confusion"] = (["actual \\ predicted", *names], matrix)
    return Report(scores, tables)


def compare_label_sets(
    actual: Sequence[Collection[str]], predicted: Sequence[Collection[str]], names: Sequence[str]
) -> Report:
    """Compute micro and macro F1, the share of examples whose labels are all right, and scores by class.

    Arguments, macro F1 and undefined scores are as in `compare_classes`, but an example has any number of classes.
    """
    from sklearn import metrics, preprocessing

    encoder = preprocessing.MultiLabelBinarizer(classes=names)
    flags = [encoder.fit_transform(labels) for labels in (actual, predicted)]  # each int (n, C)
    chosen = [1] if len(names) == 1 else None  # scikit-learn takes one column for classes 0 and 1
    by_class = metrics.precision_recall_fscore_support(*flags, labels=chosen, zero_division=0)
    used = np.logical_or(*flags).any(axis=0)  # (C,)
    scores = {
        "micro_f1": float(metrics.f1_score(*flags, labels=chosen, average="micro", zero_division=0)),
        "macro_f1": float(by_class[2][used].mean()) if used.any() else 0.0,
        "exact": float(metrics.accuracy_score(*flags)),
    }
    return Report(scores, {"classes": _table("class", names, by_class)})


def compare_numbers(actual: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> Report:
    """Pearson's and Spearman's correlation of numbers (n,): NaN if either side is constant, none for n below 2."""
    from scipy import stats

    if len(predicted) < 2:
        return Report()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        found = {"pearson": stats.pearsonr(actual, predicted), "spearman": stats.spearmanr(actual, predicted)}
    return Report({name: float(result.statistic) for name, result in found.items()})


def compare_tags(actual: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str]) -> Report:
    """Compute accuracy over words, and precision, recall and F1 of spans, or of labels if these do not mark spans.

    Each text has a list of its words' labels; a predicted "" stands for no label. `labels` are all those of the model.
    """
    from sklearn import metrics

    words = [[label for text in texts for label in text] for texts in (actual, predicted)]  # each (w,)
    scores = {"accuracy": float(metrics.accuracy_score(*words))}
    pairs = words
    scheme = SpanScheme.of(labels)
    if scheme:
        found = [
            {(i, *span) for i, text in enumerate(texts) for span in spans_of(text, scheme)}
            for texts in (actual, predicted)
        ]
        either = list(set.union(*found))
        pairs = [[span[1] if span in side else "" for span in either] for side in found]  # "" if a side lacks the span
    types = sorted({*pairs[0], *pairs[1]} - {""})
    averages = dict.fromkeys(("span_precision", "span_recall", "span_f1", "macro_f1"), 0.0)
    by_type: Sequence[np.ndarray] = [np.zeros(0)] * 4
    if types:
        by_type = metrics.precision_recall_fscore_support(*pairs, labels=types, zero_division=0)
        total = metrics.precision_recall_fscore_support(*pairs, labels=types, average="micro", zero_division=0)
        averages = dict(zip(averages, map(float, (*total[:3], by_type[2].mean())), strict=True))
    scores |= {name: value for name, value in averages.items() if scheme or name == "macro_f1"}
    return Report(scores, {"types" if scheme else "labels": _table("label", types, by_type)})


def shortened(text: str, length: int) -> str:
    """Return a text on one line, with an ellipsis if it is longer than `length`."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def _text(rows: Sequence[Sequence[Cell]]) -> str:
    cells = [[f"{x:.4f}" if isinstance(x, float) else shortened(str(x), _WIDEST) for x in row] for row in rows]
    first, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    lines = ([row[0].ljust(first), *map(str.rjust, row[1:], widths)] for row in cells)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _table(title: str, names: Sequence[str], columns: Sequence[np.ndarray]) -> Cells:
    """Make rows of scikit-learn's precision, recall, F1 and count by class."""
    *scores, counts = (column.tolist() for column in columns)
    rows: list[list[Cell]] = [[*row, int(count)] for *row, count in zip(names, *scores, counts, strict=True)]
    return [title, "precision", "recall", "f1", "count"], rows
