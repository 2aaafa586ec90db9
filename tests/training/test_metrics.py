"""Correlation and perplexity over all examples, whatever the batches."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.training import PearsonCorrelation, Perplexity, UnrolledLoss
from lmzoo.training.metrics import merge_metrics

rng = np.random.default_rng(7)
X = rng.normal(3.0, 1.3, 61)
Y = 0.4 * X + rng.normal(size=61)


def pearson_of(*batches, metric=None):
    metric = metric or PearsonCorrelation()
    for batch in batches:
        metric.update_state(*batch)
    return float(metric.result())


def weighted(x, y, w):
    """Return Pearson's correlation by its definition."""
    x, y = x - np.average(x, weights=w), y - np.average(y, weights=w)
    return np.sum(w * x * y) / np.sqrt(np.sum(w * x * x) * np.sum(w * y * y))


@pytest.mark.parametrize("size", [1, 7, 32, 61])
def test_pearson_does_not_depend_on_the_batches(size):
    correlation = pearson_of(*((X[i : i + size], Y[i : i + size]) for i in range(0, 61, size)))
    assert correlation == pytest.approx(np.corrcoef(X, Y)[0, 1], abs=1e-6)


def test_pearson_takes_weights_and_columns():
    weights = rng.random(61)
    expected = weighted(X, Y, weights)
    parts = [slice(0, 20), slice(20, 61)]
    assert pearson_of(*((X[p], Y[p, None], weights[p]) for p in parts)) == pytest.approx(expected, abs=1e-6)
    zeros = (100 * X[:5], Y[:5], np.zeros(5))
    assert pearson_of(zeros, (X, Y[:, None], weights[:, None]), zeros) == pytest.approx(expected, abs=1e-6)


def test_pearson_keeps_its_precision_far_from_zero():
    """Sums of squares in float32 would lose all digits."""
    x, y = X.astype("float32") + 4096, Y.astype("float32") + 4096
    correlation = pearson_of(*((x[i : i + 8], y[i : i + 8]) for i in range(0, 61, 8)))
    assert correlation == pytest.approx(np.corrcoef(x.astype("float64"), y.astype("float64"))[0, 1], abs=1e-4)


def test_pearson_of_constants_is_nan():
    assert np.isnan(pearson_of((X[:4], np.zeros(4))))
    assert np.isnan(pearson_of((X[:1], Y[:1])))
    assert pearson_of((X[:9], 2 * X[:9])) == pytest.approx(1)
    assert pearson_of((X[:9], -X[:9])) == pytest.approx(-1)


def test_pearson_is_reset_and_survives_serialization():
    metric = keras.metrics.deserialize(keras.metrics.serialize(PearsonCorrelation(name="r")))
    assert isinstance(metric, PearsonCorrelation)
    assert metric.name == "r"
    metric.update_state(X, -X)
    metric.reset_state()
    assert pearson_of((X, Y), metric=metric) == pytest.approx(np.corrcoef(X, Y)[0, 1], abs=1e-6)


def test_perplexity_equals_numpy():
    targets = np.array([[[3, 0], [7, 2]], [[1, 9], [-1, -1]]])
    log_probabilities = np.log(np.linspace(0.1, 0.9, 8)).reshape(2, 2, 2)
    both_directions = np.exp(-log_probabilities[targets >= 0].mean())
    metrics = [Perplexity(), Perplexity(0), Perplexity.from_config(Perplexity(1, name="backward").get_config())]
    for metric in metrics:
        for row in (0, 1):
            metric.update_state(targets[row : row + 1], log_probabilities[row : row + 1])
    results = [float(metric.result()) for metric in metrics]
    words = log_probabilities[[0, 0, 1], [0, 1, 0]]  # (3, 2): all but the padding
    one_direction = np.exp(-words.mean(axis=0))
    assert results == pytest.approx([both_directions, *one_direction], rel=1e-5)
    assert metrics[2].name == "backward"


def test_the_unrolled_loss_is_a_sum_over_steps():
    logs = -np.arange(12.0).reshape(2, 3, 2)
    loss = UnrolledLoss.from_config(UnrolledLoss().get_config())
    assert float(loss(np.zeros((2, 3, 2)), logs)) == pytest.approx(66 / 2 / 2)


def test_lists_and_dicts_of_metrics_are_not_mixed():
    assert merge_metrics({"a": ["x"]}, {"a": "y", "b": ["z"]}) == {"a": ["x", "y"], "b": ["z"]}
    assert merge_metrics({"a": ["x"]}, []) == {"a": ["x"]}
    for mixed in (({"a": ["x"]}, ["y"]), (["x"], {"a": ["y"]})):
        with pytest.raises(TypeError, match="must both be lists, or both be dicts"):
            merge_metrics(*mixed)
