"""Reports that compare predictions with labels, for `Task.report` and `lmzoo evaluate`."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmzoo.common.span_marks import SpanScheme
from lmzoo.text.span_labels import find_marked_spans

_MAX_CONFUSION_CLASSES = 12  # larger confusion matrices do not fit on a screen
_MAX_CELL_CHARACTERS = 60

Cell = str | int | float
Cells = tuple[list[str], list[list[Cell]]]  # column titles and rows


@dataclass(frozen=True)
class Judged:
    """Individual predictions with their labels; an example may have several predictions.

    Attributes:
        example: int (p,), index of the example that each of p predictions belongs to.
        actual: list of labels, one for each prediction.
        predicted: list of the predictions.
        error: float (p,), 1 for wrong and 0 for right predictions; for numeric predictions, the absolute error.
        probability: float (p,), probability of each prediction, NaN if it has none; None for numeric predictions.
        places: int (p, 2), start and end offsets of the word that each prediction belongs to; None if predictions
            belong to whole texts.
        count: int, number of examples; None if it is one more than the highest index in `example`.

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
        """Create an instance with one predicted class per example; a class is right if it equals the label."""
        error = np.array([label != prediction for label, prediction in zip(actual, predicted, strict=True)], "float64")
        return cls(np.arange(len(error)), actual, predicted, error, np.asarray(probability, "float64"))

    @classmethod
    def of_numbers(cls, actual: Any, predicted: Any) -> Judged:
        """Create an instance with one predicted number per example."""
        labels, predictions = (np.asarray(values, "float64").reshape(-1) for values in (actual, predicted))
        return cls(np.arange(len(labels)), labels.tolist(), predictions.tolist(), np.abs(labels - predictions))


@dataclass
class Report:
    """Scores and tables by name; `str` and `print` format them as columns of text.

    Attributes:
        scores: dict from names to numbers.
        tables: dict from names to column titles and rows.
        judged: `Judged`, the individual predictions, for tasks whose predictions can be right or wrong.

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
        """Format all scores, and then each table, as text with aligned columns."""
        scores: list[list[Cell]] = [[name, score] for name, score in self.scores.items()]
        return "\n\n".join(
            _format_table([titles, *rows]) for titles, rows in [(["score", "value"], scores), *self.tables.values()]
        )


def compare_classes(actual: Sequence[str], predicted: Sequence[str], names: Sequence[str]) -> Report:
    """Compute accuracy, macro F1, scores by class, the confusion matrix and, for two classes, Matthews' correlation.

    Macro F1 is the mean F1 of the classes that occur in labels or predictions; undefined scores are 0. The confusion
    matrix is omitted if there are more than 12 classes.

    Args:
        actual: n labels.
        predicted: n predicted classes.
        names: names of all classes.

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
        # Scikit-learn also returns 0, but warns if only one class occurs.
        has_one_class = len({*actual, *predicted}) < 2
        scores["mcc"] = 0.0 if has_one_class else float(metrics.matthews_corrcoef(actual, predicted))
    by_class = metrics.precision_recall_fscore_support(actual, predicted, labels=names, zero_division=0)
    tables = {"classes": _make_class_table("class", names, by_class)}
    if len(names) <= _MAX_CONFUSION_CLASSES:
        matrix: list[list[Cell]] = [[name, *counts] for name, counts in zip(names, confusion.tolist(), strict=True)]
        tables["confusion"] = (["actual \\ predicted", *names], matrix)
    return Report(scores, tables)


def compare_label_sets(
    actual: Sequence[Collection[str]], predicted: Sequence[Collection[str]], names: Sequence[str]
) -> Report:
    """Compute micro F1, macro F1, the fraction of examples with exactly the right set of labels, and scores by class.

    Macro F1 is the mean F1 of the classes that occur in labels or predictions; undefined scores are 0.

    Args:
        actual: n collections of labels.
        predicted: n collections of predicted labels.
        names: names of all labels.
    """
    from sklearn import metrics, preprocessing

    binarizer = preprocessing.MultiLabelBinarizer(classes=names)
    indicators = [binarizer.fit_transform(labels) for labels in (actual, predicted)]  # each int (n, C)
    counted_columns = [1] if len(names) == 1 else None  # scikit-learn treats a single column as classes 0 and 1
    by_class = metrics.precision_recall_fscore_support(*indicators, labels=counted_columns, zero_division=0)
    is_used = np.logical_or(*indicators).any(axis=0)  # (C,)
    scores = {
        "micro_f1": float(metrics.f1_score(*indicators, labels=counted_columns, average="micro", zero_division=0)),
        "macro_f1": float(by_class[2][is_used].mean()) if is_used.any() else 0.0,
        "exact": float(metrics.accuracy_score(*indicators)),
    }
    return Report(scores, {"classes": _make_class_table("class", names, by_class)})


def compare_numbers(actual: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> Report:
    """Compute Pearson's and Spearman's correlations between n actual and n predicted numbers.

    A correlation is NaN if either array is constant. There are no scores for n below 2.
    """
    from scipy import stats

    if len(predicted) < 2:
        return Report()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        correlations = {"pearson": stats.pearsonr(actual, predicted), "spearman": stats.spearmanr(actual, predicted)}
    return Report({name: float(correlation.statistic) for name, correlation in correlations.items()})


def compare_tags(actual: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], labels: Sequence[str]) -> Report:
    """Compute accuracy over words, and precision, recall and F1 of spans or, if labels do not mark spans, of labels.

    There are no scores if there are no words. If labels do not mark spans, precision and recall are only in the table.

    Args:
        actual: for each text, a list of its words' labels.
        predicted: for each text, a list of its words' predicted labels; "" for no label.
        labels: all labels of the model.
    """
    from sklearn import metrics

    word_labels = [[label for text in texts for label in text] for texts in (actual, predicted)]  # each (w,)
    if not word_labels[0]:
        return Report()
    scores = {"accuracy": float(metrics.accuracy_score(*word_labels))}
    actual_and_predicted = word_labels
    scheme = SpanScheme.of(labels)
    if scheme:
        span_sets = [
            {(i, *span) for i, text in enumerate(texts) for span in find_marked_spans(text, scheme)}
            for texts in (actual, predicted)
        ]
        all_spans = list(set.union(*span_sets))
        # A span that occurs in only one of the two sets gets the type "" in the other.
        actual_and_predicted = [[span[1] if span in spans else "" for span in all_spans] for spans in span_sets]
    types = sorted({*actual_and_predicted[0], *actual_and_predicted[1]} - {""})
    averages = dict.fromkeys(("span_precision", "span_recall", "span_f1", "macro_f1"), 0.0)
    by_type: Sequence[np.ndarray] = [np.zeros(0)] * 4
    if types:
        by_type = metrics.precision_recall_fscore_support(*actual_and_predicted, labels=types, zero_division=0)
        micro_scores = metrics.precision_recall_fscore_support(
            *actual_and_predicted, labels=types, average="micro", zero_division=0
        )
        averages = dict(zip(averages, map(float, (*micro_scores[:3], by_type[2].mean())), strict=True))
    scores |= {name: value for name, value in averages.items() if scheme or name == "macro_f1"}
    return Report(scores, {"types" if scheme else "labels": _make_class_table("label", types, by_type)})


def shorten(text: str, length: int) -> str:
    """Put a text on one line, and truncate it to `length` characters, including an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def _format_table(rows: Sequence[Sequence[Cell]]) -> str:
    """Format a table as text with aligned columns."""
    cells = [
        [f"{x:.4f}" if isinstance(x, float) else shorten(str(x), _MAX_CELL_CHARACTERS) for x in row] for row in rows
    ]
    first_width, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    padded_rows = ([row[0].ljust(first_width), *map(str.rjust, row[1:], widths)] for row in cells)
    return "\n".join("  ".join(row).rstrip() for row in padded_rows)


def _make_class_table(title: str, names: Sequence[str], columns: Sequence[np.ndarray]) -> Cells:
    """Return a table of precision, recall, F1 and count by class.

    Args:
        title: title of the column of class names.
        names: the class names.
        columns: the four arrays that scikit-learn returns, with a value per class.
    """
    *scores, counts = (column.tolist() for column in columns)
    rows: list[list[Cell]] = [[*row, int(count)] for *row, count in zip(names, *scores, counts, strict=True)]
    return [title, "precision", "recall", "f1", "count"], rows
