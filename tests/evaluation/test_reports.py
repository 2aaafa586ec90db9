"""The scores that `lmzoo evaluate` prints, compared with scikit-learn, numpy and counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from lmzoo.evaluation.reports import Report, compare_classes, compare_label_sets, compare_numbers, compare_tags

SPANS = ["O", "B-X", "I-X", "B-Y"]


@pytest.mark.parametrize("classes", [2, 5])
def test_classes_are_compared_as_scikit_learn_does(classes):
    rng = np.random.default_rng(17)
    names = [f"c{i}" for i in range(classes + 1)]  # the last one never occurs
    actual, predicted = rng.integers(0, classes, (2, 97))
    predicted[actual == 1] = 0
    if classes == 2:
        names, predicted[:31] = names[:2], 1
    report = compare_classes(*([names[i] for i in side] for side in (actual, predicted)), names)
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

    sides = [[[names[i] for i in np.flatnonzero(row)] for row in flags] for flags in (actual, predicted)]
    report = compare_label_sets(*sides, names)
    assert report.scores == {
        "micro_f1": pytest.approx(sklearn_metrics.f1_score(actual, predicted, average="micro")),
        "macro_f1": pytest.approx(sklearn_metrics.f1_score(actual[:, :3], predicted[:, :3], average="macro")),
        "exact": pytest.approx(sklearn_metrics.accuracy_score(actual, predicted)),
    }
    expected = sklearn_metrics.precision_recall_fscore_support(actual, predicted, zero_division=0)
    rows = report.tables["classes"][1]
    assert [row[0] for row in rows] == names
    np.testing.assert_allclose([row[1:] for row in rows], np.transpose(expected), rtol=1e-12)


def test_label_sets_of_one_class():
    report = compare_label_sets([["x"], []], [["x"], ["x"]], ["x"])
    assert report.scores == {"micro_f1": pytest.approx(2 / 3), "macro_f1": pytest.approx(2 / 3), "exact": 0.5}
    assert report.tables["classes"][1] == [["x", 0.5, 1.0, pytest.approx(2 / 3), 1]]


def test_label_sets_without_labels():
    report = compare_label_sets([[], []], [[], []], ["a", "b"])
    assert report.scores == {"micro_f1": 0.0, "macro_f1": 0.0, "exact": 1.0}
    assert report.tables["classes"][1] == [["a", 0.0, 0.0, 0.0, 0], ["b", 0.0, 0.0, 0.0, 0]]


@pytest.mark.parametrize("actual", ["abb", "bbb"])
def test_constant_predictions_have_no_correlation(actual):
    assert compare_classes(list(actual), ["b", "b", "b"], ["a", "b"]).scores["mcc"] == 0.0


def test_correlations_of_numbers():
    labels, predicted = [1.0, 2.0, 4.0, 3.0], [1.0, 3.0, 4.0, 9.0]
    pearson = np.corrcoef(labels, predicted)[0, 1]
    assert compare_numbers(labels, predicted).scores == pytest.approx({"pearson": pearson, "spearman": 0.8})
    # Ranks 1.5 1.5 3 4 and 1 2 3.5 3.5: deviations -1 -1 .5 1.5 and -1.5 -.5 1 1, products 1.5 .5 .5 1.5.
    ties = compare_numbers([1, 1, 2, 3], [0.0, 0.5, 7.0, 7.0])
    assert ties.scores["spearman"] == pytest.approx(4 / np.sqrt(4.5 * 4.5))
    assert compare_numbers([1.0], [2.0]).scores == {}
    constant = compare_numbers([1.0, 1.0], [1.0, 2.0]).scores
    assert constant == pytest.approx({"pearson": np.nan, "spearman": np.nan}, nan_ok=True)


def test_spans_are_counted_by_type():
    actual = [["B-X", "I-X", "O", "B-Y"], ["B-Y", "O"], ["B-X"]]
    predicted = [["B-X", "I-X", "O", "B-X"], ["B-Y", "B-Y"], ["O"]]
    report = compare_tags(actual, predicted, SPANS)
    assert report.tables["types"][1] == [["X", 0.5, 0.5, 0.5, 2], ["Y", 0.5, 0.5, 0.5, 2]]
    assert report.scores == pytest.approx(
        {"accuracy": 4 / 7, "span_precision": 0.5, "span_recall": 0.5, "span_f1": 0.5, "macro_f1": 0.5}
    )


def test_labels_that_mark_no_spans():
    report = compare_tags([["NOUN", "VERB"], ["NOUN"]], [["NOUN", "NOUN"], [""]], ["NOUN", "VERB", "X"])
    assert report.tables["labels"][1] == [["NOUN", 0.5, 0.5, 0.5, 2], ["VERB", 0.0, 0.0, 0.0, 1]]
    assert report.scores == pytest.approx({"accuracy": 1 / 3, "macro_f1": 0.25})


def test_tags_of_no_words_have_no_scores():
    assert compare_tags([[], []], [[], []], SPANS) == Report()


def test_texts_without_spans():
    report = compare_tags([["O", "O"]], [["O", "O"]], SPANS)
    assert report.tables["types"][1] == []
    zeros = dict.fromkeys(("span_precision", "span_recall", "span_f1", "macro_f1"), 0.0)
    assert report.scores == {"accuracy": 1.0, **zeros}
