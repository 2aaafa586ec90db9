"""Trains and predicts on meshes of virtual devices, in a process of its own: `python -m` this module.

Takes a mesh such as 2x4 and names of families, and prints "equal" if the results are those of one device.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import keras
import numpy as np

from lmzoo import models
from lmzoo.distribution import layout_map
from lmzoo.family import Family, families
from lmzoo.testing import tiny_examples, tiny_task

# Sizes that eight devices can split evenly.
WIDE: dict[str, Any] = {"hidden_dim": 40, "num_heads": 5, "intermediate_dim": 56, "num_layers": 2}
SIZES = {
    "albert": {**WIDE, "num_groups": 1, "embedding_dim": 13},
    "elmo": {"lstm_dim": 16, "projection_dim": 13},
}


def wide(family: Family) -> Family:
    """The family with a `tiny` that can be split."""
    tiny = dataclasses.replace(family.tiny, **SIZES.get(family.name, WIDE))
    return dataclasses.replace(family, tiny=tiny)


def train(family: Family, task_class: type[models.Task]) -> tuple[list[Any], int]:
    """Losses, weights and predictions after some steps, the last batches of which are uneven; split weights."""
    keras.utils.set_random_seed(7)
    task = tiny_task(task_class, wide(family))
    x, y = tiny_examples(task, 19)
    losses: list[float] = []
    task.compile(keras.optimizers.SGD(0.05, momentum=0.9))
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    task.fit(x, y, batch_size=8, epochs=7, verbose=0, callbacks=[seen])
    assert len(losses) == 21
    split = {weight.path: not weight.value.sharding.is_fully_replicated for weight in task.weights}
    # The state of the optimizer is split like the weights: it follows two numbers, the steps and the rate.
    state = task.optimizer.variables[2:]
    assert [not v.value.sharding.is_fully_replicated for v in state] == [split[w.path] for w in task.trainable_weights]
    predicted = keras.tree.flatten(task.predict(x, batch_size=8, verbose=0))
    return [losses, *predicted, *task.get_weights()], sum(split.values())


def compare(shape: tuple[int, int], family: Family, task_class: type[models.Task]) -> None:
    expected, _ = train(family, task_class)
    mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), keras.distribution.list_devices())
    layouts = layout_map(tiny_task(task_class, wide(family)), mesh)
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch"))
    try:
        found, split = train(family, task_class)
    finally:
        keras.distribution.set_distribution(None)
    for one, several in zip(expected, found, strict=True):
        np.testing.assert_allclose(several, one, atol=1e-5, rtol=1e-5)
    assert (split > 0) == (shape[1] > 1), split
    print(shape, family.name, task_class.__name__, split, "split")


if __name__ == "__main__":
    batch, model = map(int, sys.argv[1].split("x"))
    for name in sys.argv[2:]:
        compare((batch, model), families()[name], models.TextClassifier)
    print("equal")
