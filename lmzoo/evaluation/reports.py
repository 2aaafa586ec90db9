"""How well a task does on labelled examples, beyond its loss and metrics: what `lmzoo evaluate` prints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmzoo.evaluation.squad import squad_metrics
from lmzoo.text.span_labels import OUTSIDE, marks_spans, spans_of
from lmzoo.training import spearman

_LARGEST_CONFUSION = 12  # classes of a matrix that still fits on a screen

Chunks = Callable[[Any], Iterator[Any]]


@dataclass
class Report:
    """Scores by name, and tables by name: titles of columns, and rows."""

    scores: dict[str, float] = field(default_factory=dict)
    tables: dict[str, tuple[list[str], list[list[Any]]]] = field(default_factory=dict)


def report_classes(task: Any, x: Any, y: Sequence[str], chunks: Chunks, batch_size: int, **_: Any) -> Report:
    """Accuracy, macro F1, Matthews' correlation of two classes, scores by class, and the confusion matrix.

    Args:
        task: `lmzoo.models.TextClassifier`.
        x: its examples.
        y: names of their classes.
        chunks: goes through `x` in parts.
        batch_size: int.
        **_: what `evaluate` returned: the loss and the metrics.
    """
    names = task.class_names
    logits = np.concatenate([task.predict(part, batch_size, verbose=0) for part in chunks(x)])  # (n, C)
    return compare_classes([names.index(name) for name in y], logits.argmax(axis=1), names)


def compare_classes(actual: Sequence[int], predicted: Sequence[int], names: Sequence[str]) -> Report:
    """The report of `report_classes`, from class numbers.

    Macro F1 is the mean over classes that occur in either; precision and recall are 0 where they are undefined.
    """
    confusion = np.zeros((len(names), len(names)), "int64")  # [actual, predicted]
    np.add.at(confusion, (np.asarray(actual), np.asarray(predicted)), 1)
    right, there, said = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    rows = [_prf(name, *counts) for name, *counts in zip(names, right, said, there, strict=True)]
    used = (there + said) > 0
    scores = {"accuracy": _ratio(right.sum(), confusion.sum())}
    scores["macro_f1"] = float(np.mean([row[3] for row, is_used in zip(rows, used, strict=True) if is_used]))
    if len(names) == 2:
        (a, b), (c, d) = confusion.tolist()
        scores["mcc"] = _ratio(a * d - b * c, math.sqrt(math.prod([a + b, c + d, a + c, b + d])))
    tables = {"classes": (["class", "precision", "recall", "f1", "count"], rows)}
    if len(names) <= _LARGEST_CONFUSION:
        matrix = [[name, *counts] for name, counts in zip(names, confusion.tolist(), strict=True)]
        tables["confusion"] = (["actual \\ predicted", *names], matrix)
    return Report(scores, tables)


def report_label_sets(
    task: Any, x: Any, y: Sequence[Sequence[str]], chunks: Chunks, batch_size: int, **_: Any
) -> Report:
    """Micro and macro F1, the share of examples whose labels are all right, and scores by class.

    Macro F1 is the mean over classes that occur in either; scores are 0 where they are undefined.
    """
    answers = [row for part in chunks(x) for row in task.classify(part, batch_size)]
    predicted = {(i, answer["label"]) for i, row in enumerate(answers) for answer in row}
    actual = {(i, name) for i, names in enumerate(y) for name in names}
    right, said, there = (Counter(name for _, name in pairs) for pairs in (actual & predicted, predicted, actual))
    rows = [_prf(name, right[name], said[name], there[name]) for name in task.class_names]
    used = [row[3] for row in rows if said[row[0]] or there[row[0]]]
    wrong = {i for i, _ in actual ^ predicted}
    scores = {
        "micro_f1": _prf("", right.total(), said.total(), there.total())[3],
        "macro_f1": float(np.mean(used)) if used else 0.0,
        "exact": _ratio(len(y) - len(wrong), len(y)),
    }
    return Report(scores, {"classes": (["class", "precision", "recall", "f1", "count"], rows)})


def report_numbers(task: Any, x: Any, y: Sequence[float], chunks: Chunks, batch_size: int, **_: Any) -> Report:
    """Pearson's and Spearman's correlation of labels and predictions."""
    predicted = np.concatenate([task.predict(part, batch_size, verbose=0)[:, 0] for part in chunks(x)])  # (n,)
    return Report(_correlations(y, predicted))


def report_tags(task: Any, x: Any, y: Sequence[Sequence[str]], chunks: Chunks, batch_size: int, **_: Any) -> Report:
    """Accuracy over words; precision, recall and F1 of spans, by type, or of labels that mark none.

    Words that the model does not see, since they were cut off, count: as outside of spans, or as wrong.
    """
    spans = marks_spans(task.labels)
    unseen = OUTSIDE if spans else ""
    labels = [labels for part in chunks(x) for labels in _labels_of_words(task, part, unseen, batch_size)]
    pairs = [
        (a, b) for actual, predicted in zip(y, labels, strict=True) for a, b in zip(actual, predicted, strict=True)
    ]
    scores = {"accuracy": _ratio(sum(a == b for a, b in pairs), len(pairs))}
    found: list[set[tuple[Any, ...]]]  # what is there, and what was predicted: where it is, its label, and more
    if spans:
        found = [{(i, *span) for i, row in enumerate(rows) for span in spans_of(row)} for rows in (y, labels)]
    else:
        found = [{(k, pair[side]) for k, pair in enumerate(pairs)} for side in (0, 1)]
    actual, predicted = found
    counts = [Counter(entry[1] for entry in entries) for entries in (actual & predicted, predicted, actual)]
    types = sorted({*counts[1], *counts[2]} - {""})
    rows = [_prf(type_, *(count[type_] for count in counts)) for type_ in types]
    if spans:
        total = _prf("", *(count.total() for count in counts))
        scores |= dict(zip(("span_precision", "span_recall", "span_f1"), total[1:4], strict=True))
    scores["macro_f1"] = float(np.mean([row[3] for row in rows])) if rows else 0.0
    return Report(scores, {"types" if spans else "labels": (["label", "precision", "recall", "f1", "count"], rows)})


def _labels_of_words(task: Any, texts: Any, unseen: str, batch_size: int) -> Iterator[list[str]]:
    encoded = task.encode_inputs(texts)
    best = task.predict(encoded, batch_size, verbose=0).argmax(axis=-1)  # (n, T)
    for row, columns in zip(best, np.split(encoded.first, encoded.word_splits[1:-1]), strict=True):
        yield [task.class_names[row[column]] if column >= 0 else unseen for column in columns]


def report_answers(task: Any, x: Any, y: Any, chunks: Chunks, batch_size: int, **_: Any) -> Report:
    """Exact match and F1, as SQuAD's script defines them."""
    answers = [answer for part in chunks(x) for answer in task.answer(part, batch_size=batch_size)]
    return Report({name: score for name, score in squad_metrics(answers, y).items() if not name.endswith("total")})


def report_choices(task: Any, x: Any, y: Sequence[int], chunks: Chunks, batch_size: int, **_: Any) -> Report:
    """Accuracy."""
    chosen = [choice["index"] for part in chunks(x) for choice in task.choose(part, batch_size)]
    return Report({"accuracy": float(np.mean(np.equal(chosen, y)))})


def report_masked(task: Any, x: Any, y: None, chunks: Chunks, loss: float, **_: Any) -> Report:
    """The exponential of the loss: how many tokens the model hesitates between at each mask."""
    return Report({"perplexity": float(np.exp(loss))})


def report_pairs(task: Any, x: Any, y: Sequence[float] | None, chunks: Chunks, batch_size: int, **_: Any) -> Report:
    """Pearson's and Spearman's correlation of labels and cosines; nothing without labels."""
    if y is None:
        return Report()
    cosines = []
    for firsts, seconds in chunks(x):
        a, b = (task.embed(texts, batch_size) for texts in (firsts, seconds))  # (n, H)
        cosines.append((a * b).sum(axis=1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-12))
    return Report(_correlations(y, np.concatenate(cosines)))


def _correlations(actual: Sequence[float], predicted: np.ndarray) -> dict[str, float]:
    if len(predicted) < 2:
        return {}
    a, b = (np.asarray(values, "float64") - np.mean(values) for values in (actual, predicted))
    return {"pearson": _ratio(a @ b, np.sqrt((a @ a) * (b @ b))), "spearman": spearman(actual, predicted)}


def _prf(name: str, right: int, predicted: int, actual: int) -> list[Any]:
    precision, recall = _ratio(right, predicted), _ratio(right, actual)
    return [name, precision, recall, _ratio(2 * right, predicted + actual), int(actual)]


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
