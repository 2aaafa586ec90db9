"""Metrics of taggers against counting in Python."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.text.span_labels import find_marked_spans
from lmzoo.training.span_metrics import IGNORED, SpanScore, TokenAccuracy

LABELS = ["O", *(f"{mark}-{type_}" for mark in "BIES" for type_ in ("PER", "LOC"))]


def batches(count=5, rows=7, length=13):
    """Iterate over labels with ignored positions anywhere, logits that predict most of them, and the predictions."""
    rng = np.random.default_rng(11)
    for _ in range(count):
        labels = rng.integers(-3, len(LABELS), (rows, length))
        labels[labels < 0] = IGNORED
        is_correct = (labels >= 0) & (rng.random(labels.shape) < 0.7)
        predictions = np.where(is_correct, labels, rng.integers(0, len(LABELS), labels.shape))
        yield (
            labels,
            rng.normal(scale=0.1, size=(*labels.shape, len(LABELS))) + 5 * np.eye(len(LABELS))[predictions],
            predictions,
        )


def count_spans(labels, predictions):
    is_used = labels != IGNORED
    actual = {*find_marked_spans([LABELS[k] for k in labels[is_used]])}
    predicted = {*find_marked_spans([LABELS[k] for k in predictions[is_used]])}
    return np.array([len(actual & predicted), len(predicted), len(actual)])


@pytest.mark.parametrize("score", ["precision", "recall", "f1"])
def test_span_scores_equal_counts(score):
    metric, counts = SpanScore(LABELS, score), np.zeros(3)
    for labels, logits, predictions in batches():
        metric.update_state(labels, logits)
        counts += sum(map(count_spans, labels, predictions))
    correct, predicted, actual = counts
    expected = {"precision": correct / predicted, "recall": correct / actual, "f1": 2 * correct / (predicted + actual)}
    assert 0.2 < expected[score] < 0.9
    assert float(metric.result()) == pytest.approx(expected[score], abs=1e-6)
    assert metric.name == f"span_{score}"
    clone = SpanScore.from_config(metric.get_config())
    assert float(clone.result()) == 0
    metric.reset_state()
    assert float(metric.result()) == 0


def test_rows_of_weight_0_do_not_count():
    labels, logits, predictions = next(batches())
    weights = np.arange(7) % 2 * 0.5
    metric = SpanScore(LABELS, "recall")
    metric.update_state(labels, logits, weights)
    correct, _, actual = sum(map(count_spans, labels[1::2], predictions[1::2]))
    assert float(metric.result()) == pytest.approx(correct / actual, abs=1e-6)


def test_token_accuracy_equals_numpy():
    metric = TokenAccuracy()
    correct = 0.0
    total = 0.0
    weights = np.array([0.0, 1, 2, 3, 1, 1, 1])[:, None]
    for labels, logits, predictions in batches():
        metric.update_state(labels, logits, weights[:, 0])
        is_valid = labels != IGNORED
        correct += np.sum(weights * is_valid * (labels == predictions))
        total += np.sum(weights * is_valid)
    assert float(metric.result()) == pytest.approx(correct / total, abs=1e-6)


def test_batches_may_have_different_widths():
    metric = TokenAccuracy()
    logits = np.eye(5)[[[0, 1, 2]]]  # all correct
    metric.update_state(np.array([[0, 1, 2]]), logits)
    wide = np.pad(logits, ((0, 0), (0, 4), (0, 0)))
    metric.update_state(np.array([[1, 2, 3, *[IGNORED] * 4]]), wide)  # all wrong
    assert float(metric.result()) == pytest.approx(0.5)


def test_an_unknown_score_is_refused():
    with pytest.raises(ValueError, match="accuracy"):
        SpanScore(LABELS, "accuracy")


def test_metrics_work_in_a_compiled_step():
    model = keras.Sequential([keras.Input((None, 3)), keras.layers.Dense(len(LABELS))])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=IGNORED)
    model.compile(loss=loss, weighted_metrics=[TokenAccuracy(), SpanScore(LABELS)])
    labels, _, _ = next(batches())
    metric = SpanScore(LABELS)
    inputs = np.ones((7, 13, 3), "float32")
    metric.update_state(labels, model.predict(inputs, verbose=0))
    results = model.evaluate(inputs, labels, verbose=0, return_dict=True)
    assert results["span_f1"] == pytest.approx(float(metric.result()), abs=1e-6)
