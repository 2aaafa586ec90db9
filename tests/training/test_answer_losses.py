"""Loss and metric of question answering against numpy."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.training.answer_losses import SpanAccuracy, SpanCrossentropy

LOGITS = np.random.default_rng(3).normal(size=(5, 7, 2)).astype("float32")
POSITIONS = np.array([[0, 0], [2, 5], [3, 3], [6, 6], [1, 4]], "int32")


def test_the_loss_is_the_mean_of_both_cross_entropies():
    log = LOGITS - np.log(np.exp(LOGITS).sum(axis=1, keepdims=True))
    rows = np.array([-(log[i, a, 0] + log[i, b, 1]) / 2 for i, (a, b) in enumerate(POSITIONS)])
    assert float(SpanCrossentropy()(POSITIONS, LOGITS)) == pytest.approx(rows.mean(), rel=1e-5)
    weights = np.array([0, 1, 0.5, 2, 1], "float32")
    weighted = float(SpanCrossentropy()(POSITIONS, LOGITS, sample_weight=weights))
    assert weighted == pytest.approx((rows * weights).mean(), rel=1e-5)


def test_padding_does_not_change_the_loss():
    padded = np.concatenate([LOGITS, np.full((5, 3, 2), -1e9, "float32")], axis=1)
    expected = float(SpanCrossentropy()(POSITIONS, LOGITS))
    assert float(SpanCrossentropy()(POSITIONS, padded)) == pytest.approx(expected, rel=1e-6)


def test_accuracy_needs_both_positions():
    best = LOGITS.argmax(axis=1)
    metric = SpanAccuracy()
    metric.update_state(best, LOGITS)
    assert float(metric.result()) == 1.0
    metric.reset_state()
    partly_wrong = best.copy()
    partly_wrong[1, 0] += 1
    partly_wrong[2, 1] -= 1
    metric.update_state(partly_wrong, LOGITS)
    assert float(metric.result()) == pytest.approx(3 / 5)
    metric.reset_state()
    metric.update_state(partly_wrong, LOGITS, sample_weight=[1.0, 1.0, 2.0, 0.0, 1.0])
    assert float(metric.result()) == pytest.approx(2 / 5)


@pytest.mark.parametrize("original", [SpanCrossentropy(name="a"), SpanAccuracy(name="b")])
def test_both_survive_serialization(original):
    clone = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(original))
    assert type(clone) is type(original)
    assert clone.get_config() == original.get_config()
