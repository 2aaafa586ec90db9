"""Calibration, worst predictions and slices of reports, compared with numpy, scikit-learn and counts by hand."""

from __future__ import annotations

from dataclasses import replace

import keras
import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import calibration_curve

from lmzoo.evaluation import calibration
from lmzoo.evaluation.errors import add_errors, add_learning_curve, add_slices, learning_curve
from lmzoo.evaluation.reports import Judged, Report


@pytest.mark.parametrize("bins", [5, 15])
def test_the_calibration_error_is_that_of_guo(bins):
    rng = np.random.default_rng(7)
    probability = rng.uniform(0.2, 1, 211)
    is_correct = rng.random(211) < probability**2
    result = calibration(probability, is_correct, bins)
    expected = 0.0
    for i in range(bins):  # equation 3 of the paper
        inside = (probability > i / bins) & (probability <= (i + 1) / bins)
        if inside.any():
            expected += inside.sum() / 211 * abs(is_correct[inside].mean() - probability[inside].mean())
    assert result.error == pytest.approx(expected, abs=1e-12)
    accuracy, confidence = calibration_curve(is_correct, probability, n_bins=bins)
    filled = result.counts > 0
    np.testing.assert_allclose(result.accuracy[filled], accuracy)
    np.testing.assert_allclose(result.confidence[filled], confidence)
    assert np.isnan(result.accuracy[~filled]).all()
    assert result.counts.sum() == 211


def test_bounds_of_bins_and_errors_of_probabilities():
    assert calibration([1.0, 0.0, 0.2], [1, 0, 0], 5).counts.tolist() == [2, 0, 0, 0, 1]
    for probability, is_correct in (([], []), ([0.5], [True, False])):
        with pytest.raises(ValueError, match="a probability for each answer"):
            calibration(probability, is_correct)
    with pytest.raises(ValueError, match="between 0 and 1: pass those of `softmax`"):
        calibration([2.5], [True])


@pytest.fixture
def report():
    actual, predicted = list("aabbaa"), list("abbaab")
    return Report({"accuracy": 0.5}, judged=Judged.of_classes(actual, predicted, [0.9, 0.6, 0.8, 0.95, 0.7, 0.5]))


def test_the_most_confident_mistakes_come_first(report):
    with_errors = add_errors(report, [f"text {i}" for i in range(6)])
    titles, rows = with_errors.tables["worst"]
    assert titles == ["example", "label", "predicted", "probability", "text"]
    assert rows == [[3, "b", "a", 0.95, "text 3"], [1, "a", "b", 0.6, "text 1"], [5, "a", "b", 0.5, "text 5"]]
    assert with_errors.scores == {
        "accuracy": 0.5,
        "ece": calibration(report.judged.probability, [1, 0, 1, 0, 1, 0]).error,
    }
    assert sum(row[1] for row in with_errors.tables["calibration"][1]) == 6
    assert report.tables == {}


def test_the_worst_numbers_and_words_come_first():
    numbers = add_errors(Report(judged=Judged.of_numbers([1, 2, 3], [1, 4.5, 2])), ["a", "bb", "bb"])
    assert numbers.tables["worst"][1] == [[1, 2.0, 4.5, 2.5, "bb"], [2, 3.0, 2.0, 1.0, "bb"]]
    assert numbers.tables["by length"] == (["characters", "count", "mean error"], [["1", 1, 0.0], ["2", 2, 1.75]])
    assert "calibration" not in numbers.tables
    words = Judged(np.array([0, 1, 1]), ["A", "A", "B"], ["A", "B", "A"], np.array([0.0, 1, 1]),
                   np.array([0.5, 0.7, np.nan]), np.array([[0, 3], [0, 1], [2, 4]]))  # fmt: skip
    with_errors = add_errors(Report(judged=words), ["one", "a cd"])
    assert [row[-1] for row in with_errors.tables["worst"][1]] == ["[a] cd", "a [cd]"]
    assert sum(row[1] for row in with_errors.tables["calibration"][1]) == 2  # truncated words have no probability
    assert with_errors.tables["by length"][1] == [["3", 1, 1.0, 0.5], ["4", 2, 0.0, 0.7]]


def test_slices_of_texts_and_numbers(report):
    sliced = add_slices(report, {"topic": ["sea", "sea", "war", "war", None, ""], "n": list("123456")})
    titles, rows = sliced.tables["by topic"]
    assert titles == ["topic", "count", "accuracy", "confidence"]
    assert rows == [
        ["sea", 2, 0.5, 0.75], ["war", 2, 0.5, pytest.approx(0.875)], ["(none)", 2, 0.5, pytest.approx(0.6)],
    ]  # fmt: skip
    assert [row[0] for row in sliced.tables["by n"][1]] == list("123456")
    large_report = Report(judged=Judged.of_classes(["a"] * 100, ["a"] * 50 + ["b"] * 50, [0.5] * 100))
    numbers = [*map(str, range(98)), "nan", ""]
    sliced = add_slices(large_report, {"n": numbers, "id": [f"id {i}" for i in range(100)]})
    rows = sliced.tables["by n"][1]
    assert [row[0] for row in rows] == ["0 to 24", "25 to 48", "49 to 72", "73 to 97", "(none)"]
    assert [row[1] for row in rows] == [25, 24, 24, 25, 2]
    assert rows[2][2] == pytest.approx(1 / 24)
    assert sliced.tables["by id"][1][-1][:2] == ["(others)", 80]
    for missing in (pd.NA, pd.NaT):
        sliced = add_slices(large_report, {"n": pd.Series([*range(97), *[missing] * 3], dtype=object)})
        rows = sliced.tables["by n"][1]
        assert [row[0] for row in rows] == ["0 to 23", "24 to 47", "48 to 71", "72 to 96", "(none)"]
        assert rows[-1][1] == 3
    with pytest.raises(ValueError, match="The column 'n' has 3 values for 6 examples"):
        add_slices(report, {"n": [1, 2, 3]})
    with pytest.raises(ValueError, match="The column 'n' has 7 values for 6 examples"):
        add_slices(report, {"n": range(7)})
    unlabeled = replace(report.judged, count=7)  # the last text has no label
    assert len(add_slices(Report(judged=unlabeled), {"n": range(7)}).tables["by n"][1]) == 6
    with pytest.raises(ValueError, match="no answers that are right or wrong"):
        add_slices(Report(), {"n": []})


def test_the_learning_curve_is_a_table():
    history = {"loss": [2.0, 1.0], "val_loss": [2.5, 1.5]}
    expected = (["epoch", "loss", "val_loss"], [[1, 2.0, 2.5], [2, 1.0, 1.5]])
    assert add_learning_curve(Report(), history).tables == {"learning curve": expected}
    for invalid in ({}, {"loss": []}, {"loss": [1.0], "val_loss": [1.0, 2.0]}, {"loss": [1.0, 2.0], "auc": [1.0]}):
        with pytest.raises(ValueError, match="a number for each epoch"):
            add_learning_curve(Report(), invalid)
    with pytest.raises(TypeError, match="`history` must be what `fit` returns"):
        add_learning_curve(Report(), [1.0])


def test_a_learning_curve_has_the_numbers_of_its_epochs():
    """Keras counts epochs from 0."""
    history = keras.callbacks.History()
    history.epoch = [3, 4]
    history.history = {"loss": [2.0, 1.0]}
    assert learning_curve(history) == (["epoch", "loss"], [[4, 2.0], [5, 1.0]])


@pytest.mark.parametrize(
    ("epochs", "scores", "expected"),
    [
        ([1, 2, 3, 4, 5], [0.5, 0.25], [None, 0.5, None, 0.25, None]),
        ([1, 2, 3, 4, 5, 6, 7], [0.5, 0.25, 0.125], [None, 0.5, None, 0.25, None, 0.125, None]),
        ([4, 5, 6, 7], [0.5, 0.25], [0.5, None, 0.25, None]),
    ],
)
def test_validation_scores_belong_to_every_kth_epoch(epochs, scores, expected):
    history = keras.callbacks.History()
    history.epoch = [epoch - 1 for epoch in epochs]
    history.history = {"loss": [1.0] * len(epochs), "val_loss": scores}
    titles, rows = learning_curve(history)
    assert titles == ["epoch", "loss", "val_loss"]
    assert [row[0] for row in rows] == epochs
    assert [row[2] for row in rows] == pytest.approx([np.nan if x is None else x for x in expected], nan_ok=True)


def test_validation_scores_of_unclear_epochs_are_refused():
    """One score of three epochs may be of the second or of the third one."""
    with pytest.raises(ValueError, match=r"for each epoch under every name, got \{'loss': 3, 'val_loss': 1\}"):
        learning_curve({"loss": [3.0, 2.0, 1.0], "val_loss": [0.5]})
