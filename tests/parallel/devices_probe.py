"""Trains and predicts on several virtual devices of JAX, in a separate process: `python -m` this module.

Prints "equal" if the results equal those of one device.
"""

from __future__ import annotations

import sys

import keras
import numpy as np

from lmzoo import models
from lmzoo.parallel.several_devices import SeveralDevicesModel, give_whole_batches, split_evenly
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_examples, tiny_preprocessor
from lmzoo.training import fit_together


def small_task() -> models.TextClassifier:
    family = families()["bert"]
    return models.TextClassifier(tiny_backbone(family, num_layers=1), tiny_preprocessor(family), num_classes=3)


def dense_results() -> list[object]:
    """Return the results for 7 weighted rows in batches of 5: the devices can divide neither of the batches."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((3,))
    model = SeveralDevicesModel(inputs, keras.layers.Dense(2)(keras.layers.Dropout(0.5)(inputs)))
    model.compile("sgd", "mse", weighted_metrics=["mae"])
    rng = np.random.default_rng(5)
    x, y, weights = (rng.normal(size=shape) for shape in ((7, 3), (7, 2), (7,)))
    history = model.fit(x, y, 5, sample_weight=np.abs(weights), epochs=2, verbose=0).history
    even_scores = model.evaluate(x, y, 4, sample_weight=np.abs(weights), verbose=0)  # the first batch divides
    single_batches = [model.train_on_batch(x, y), model.test_on_batch(x, y), model.predict_on_batch(x)]
    return [*history.values(), even_scores, model.predict(x, 4, verbose=0), *single_batches, *model.get_weights()]


def task_results() -> list[object]:
    task = small_task()
    x, y = tiny_examples(task, 3)
    history = task.fit(x, y, verbose=0).history
    scores = [answer["score"] for answer in task.classify(x[:2])]
    return [*history.values(), scores, *task.get_weights()]


def together_results() -> list[object]:
    task = small_task()
    history = fit_together({"task": (task, *tiny_examples(task, 3))}, verbose=0).history
    return [*history.values(), *task.get_weights()]


def check_splits() -> None:
    count = len(keras.distribution.list_devices())
    with give_whole_batches():
        (array,) = split_evenly([np.ones((2 * count, 3))])
        assert [part.data.shape for part in array.addressable_shards] == [(2, 3)] * count
        assert split_evenly(None) is None
        assert isinstance(split_evenly(np.ones((2 * count + 1, 3))), np.ndarray)  # unchanged


def compare(compute) -> None:
    expected = compute()
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    check_splits()
    for desired, actual in zip(expected, compute(), strict=True):
        np.testing.assert_allclose(actual, desired, atol=1e-5)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        compare(globals()[name])
        keras.distribution.set_distribution(None)
    print("equal")
