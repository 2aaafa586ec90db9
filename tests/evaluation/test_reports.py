"""The scores that `lmzoo evaluate` prints, against scikit-learn, numpy and counts made by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from lmzoo.evaluation.reports import (
    compare_classes,
    report_answers,
    report_choices,
    report_label_sets,
    report_numbers,
    report_pairs,
    report_tags,
)

SPANS = ["O", "B-X", "I-X", "B-Y"]


@pytest.mark.parametrize("classes", [2, 5])
def test_classes_are_compared_as_scikit_learn_does(classes):
    rng = np.random.default_rng(17)
    names = [f"c{i}" for i in range(classes + 1)]  # the last one never occurs
    actual, predicted = rng.integers(0, classes, (2, 97))
    predicted[actual == 1] = 0
    if classes == 2:
        names, predicted[:31] = names[:2], 1
    report = compare_classes(actual, predicted, names)
    assert report.scores["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(actual, predicted))
    assert report.scores["macro_f1"] == pytest.approx(sklearn_metrics.f1_score(actual, predicted, average="macro"))
    used = sorted({*actual, *predicted})
    expected = sklearn_metrics.precision_recall_fscore_support(actual, predicted, zero_division=0, labels=used)
    rows = report.tables["classes"][1]
    np.testing.assert_allclose([rows[i][1:] for i in used], np.transpose(expected), rtol=1e-12)
    confusion = np.array([row[1:] for row in report.tables["confusion"][1]])
    np.testing.assert_array_equal(
        confusion, sklearn_metrics.confusion_matrix(actual, predicted, labels=range(len(names)))
    )
    if classes == 2:
        assert report.scores["mcc"] == pytest.approx(sklearn_metrics.matthews_corrcoef(actual, predicted))
    else:
        assert "mcc" not in report.scores


def test_label_sets_are_compared_as_scikit_learn_does():
    rng = np.random.default_rng(19)
    names = ["art", "sport", "war", "sea"]  # the last one never occurs
    actual, predicted = rng.integers(0, 2, (2, 31, 4))
    actual[:, 3] = predicted[:, 3] = 0
    actual[5:11], predicted[5:11] = actual[:6], actual[:6]

    def classify(x, batch_size):
        return [[{"label": names[i]} for i in np.flatnonzero(predicted[row])] for row in x]

    y = [[names[i] for i in np.flatnonzero(row)] for row in actual]
    task = SimpleNamespace(classify=classify, class_names=names)
    report = report_label_sets(task, range(31), y, lambda x: [x[:17], x[17:]], batch_size=4)
    assert report.scores == {
        "micro_f1": pytest.approx(sklearn_metrics.f1_score(actual, predicted, average="micro")),
        "macro_f1": pytest.approx(sklearn_metrics.f1_score(actual[:, :3], predicted[:, :3], average="macro")),
        "exact": pytest.approx(sklearn_metrics.accuracy_score(actual, predicted)),
    }
    expected = sklearn_metrics.precision_recall_fscore_support(actual, predicted, zero_division=0)
    rows = report.tables["classes"][1]
    assert [row[0] for row in rows] == names
    np.testing.assert_allclose([row[1:] for row in rows], np.transpose(expected), rtol=1e-12)


def test_one_answer_for_all_has_no_correlation():
    assert compare_classes([0, 1, 1], [1, 1, 1], ["a", "b"]).scores["mcc"] == 0.0


def test_correlations():
    labels, predicted = np.array([1.0, 2.0, 4.0, 3.0]), np.array([[1.0], [3.0], [4.0], [9.0]])
    task = SimpleNamespace(predict=lambda x, batch_size, verbose: predicted[x])
    report = report_numbers(task, range(4), labels, lambda x: [x[:3], x[3:]], batch_size=4)
    pearson = np.corrcoef(labels, predicted[:, 0])[0, 1]
    assert report.scores == pytest.approx({"pearson": pearson, "spearman": 0.8})
    vectors = np.array([[3.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    task = SimpleNamespace(embed=lambda x, batch_size: vectors[x])
    pairs = ([0, 0, 0], [1, 2, 3])  # cosines 1, 0.71, 0
    report = report_pairs(task, pairs, [0.9, 0.5, 0.1], lambda x: [x], batch_size=4)
    pearson = np.corrcoef([0.9, 0.5, 0.1], [1, 0.5**0.5, 0])[0, 1]
    assert report.scores == pytest.approx({"pearson": pearson, "spearman": 1.0})


def test_choices_and_answers():
    task = SimpleNamespace(choose=lambda x, batch_size: [{"index": i} for i in x])
    assert (
        report_choices(task, [1, 2, 0], [1, 0, 0], lambda x: [x[:2], x[2:]], batch_size=4).scores["accuracy"] == 2 / 3
    )
    task = SimpleNamespace(answer=lambda x, batch_size: [{"text": text} for text in x])
    golds = [[{"text": "Ada", "answer_start": 0}], []]
    report = report_answers(task, ["the Ada", "Bob"], golds, lambda x: [x], batch_size=4)
    assert report.scores["exact_match"] == 50
    assert report.scores["unanswerable_accuracy"] == 0


class Tagger:
    """Stands for a model: says which labels it gives to the words that it sees."""

    def __init__(self, labels, given):
        self.labels = self.class_names = labels
        self._given = given

    def encode_inputs(self, texts):
        first = [k if label else -1 for row in self._given for k, label in enumerate(row)]
        splits = np.cumsum([0, *map(len, self._given)])
        return type("Encoded", (), {"first": np.array(first), "word_splits": splits})

    def predict(self, encoded, batch_size, verbose):
        logits = np.zeros((len(self._given), 9, len(self.labels)))
        for i, row in enumerate(self._given):
            for k, label in enumerate(row):
                if label:
                    logits[i, k, self.labels.index(label)] = 1
        return logits


def _tags(labels, actual, given):
    x = [["w"] * len(row) for row in actual]
    return report_tags(Tagger(labels, given), x, actual, lambda x: [x], batch_size=4)


def test_spans_are_counted_by_type():
    actual = [["B-X", "I-X", "O", "B-Y"], ["B-Y", "O"], ["B-X"]]
    given = [["B-X", "I-X", "O", "B-X"], ["B-Y", "B-Y"], [None]]  # the last word was cut off
    report = _tags(SPANS, actual, given)
    assert report.tables["types"][1] == [["X", 0.5, 0.5, 0.5, 2], ["Y", 0.5, 0.5, 0.5, 2]]
    assert report.scores == pytest.approx(
        {"accuracy": 4 / 7, "span_precision": 0.5, "span_recall": 0.5, "span_f1": 0.5, "macro_f1": 0.5}
    )


def test_labels_that_mark_no_spans():
    report = _tags(["NOUN", "VERB", "X"], [["NOUN", "VERB"], ["NOUN"]], [["NOUN", "NOUN"], [None]])
    assert report.tables["labels"][1] == [["NOUN", 0.5, 0.5, 0.5, 2], ["VERB", 0.0, 0.0, 0.0, 1]]
    assert report.scores == pytest.approx({"accuracy": 1 / 3, "macro_f1": 0.25})
