"""Trains and predicts on meshes of virtual devices, in a process of its own: `python -m` this module.

Takes a mesh such as 2x4 and names of families or of ways to use a model, and prints "equal" if the results are those of
one device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from lmzoo import models
from lmzoo.distribution import layout_map
from lmzoo.family import Family, families
from lmzoo.testing import tiny_backbone, tiny_examples, tiny_preprocessor, tiny_task
from lmzoo.training import AdamW, ResumableCheckpoint

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


# The tolerance of results that are computed with fewer than 24 bits.
TOLERANCES = {"mixed_precision": 0.02}


class Interrupted(Exception):  # noqa: N818 - not an error
    pass


def some_task(name: str = "TextClassifier", family: str = "bert", **arguments: Any) -> models.Task:
    """A tiny task, trained by SGD: adaptive rates would enlarge rounding errors of small gradients."""
    task = tiny_task(getattr(models, name), wide(families()[family]), **arguments)
    task.compile(keras.optimizers.SGD(0.05, momentum=0.9))
    return task


def losses_of(task: models.Task, *args: Any, **kwargs: Any) -> list[float]:
    """The losses after each of the steps of a `fit`."""
    losses: list[float] = []
    seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    task.fit(*args, **{"callbacks": [seen], "verbose": 0, **kwargs})
    return losses


# === Ways to use a model: each gives numbers ===


def fit_of_family(name: str) -> Iterator[Any]:
    """Losses, predictions and weights after some steps, the last batches of which are uneven."""
    task = some_task(family=name)
    x, y = tiny_examples(task, 19)
    losses = losses_of(task, x, y, batch_size=8, epochs=7)
    assert len(losses) == 21
    if keras.distribution.distribution() is not None:
        check_what_is_split(task)
    yield losses
    yield task.predict(x, batch_size=8, verbose=0)
    yield task.get_weights()


def check_what_is_split(task: models.Task) -> None:
    """Weights are split where there is an axis for them; the state of the optimizer is split like its weights."""
    split = {weight.path: not weight.value.sharding.is_fully_replicated for weight in task.weights}
    state = task.optimizer.variables[2:]  # it follows two numbers, the steps and the rate
    assert [not v.value.sharding.is_fully_replicated for v in state] == [split[w.path] for w in task.trainable_weights]
    assert any(split.values()) == (keras.distribution.distribution().device_mesh.shape[1] > 1), split


def token_features() -> Iterator[Any]:
    task = some_task()
    x, y = tiny_examples(task, 11)
    features = task.preprocessor(x)
    yield losses_of(task, features, np.array(y), batch_size=4, epochs=2, shuffle=False)
    yield task.evaluate(features, np.array(y), 4, verbose=0)
    yield task.predict(features, 4, verbose=0)
    yield task.get_weights()


def dataset() -> Iterator[Any]:
    import tensorflow as tf

    task = some_task()
    texts, labels = tiny_examples(task, 11)
    data = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(4)
    yield losses_of(task, data, epochs=2)
    yield task.evaluate(data, verbose=0)
    yield task.predict(data.map(lambda text, label: text), verbose=0)
    yield task.get_weights()


def accumulation() -> Iterator[Any]:
    task = some_task("MaskedLM")
    optimizer = keras.optimizers.SGD(0.05, gradient_accumulation_steps=3)
    task.compile(optimizer)
    x, _ = tiny_examples(task, 23)
    yield losses_of(task, x, batch_size=4, epochs=2)
    yield task.get_weights()


def lora() -> Iterator[Any]:
    task = some_task()
    task.backbone.enable_lora(2)
    task.compile(keras.optimizers.SGD(0.05))
    x, y = tiny_examples(task, 11)
    yield losses_of(task, x, y, batch_size=4, epochs=2)
    yield task.predict(x, 4, verbose=0)


def mixed_precision() -> Iterator[Any]:
    family = wide(families()["bert"])
    backbone = tiny_backbone(family, dtype="mixed_bfloat16")
    task = models.TextClassifier(backbone, tiny_preprocessor(family), num_classes=3)
    task.compile(keras.optimizers.SGD(0.05))
    x, y = tiny_examples(task, 11)
    yield losses_of(task, x, y, batch_size=4, epochs=2)
    yield task.predict(x, 4, verbose=0)


def resumed() -> Iterator[Any]:
    """A run with masks and dropout that is interrupted twice; the default optimizer."""

    def run(folder: Path | None, steps: int | None) -> models.Task:
        keras.utils.set_random_seed(5)
        family = wide(families()["bert"])
        task = models.MaskedLM(tiny_backbone(family, dropout=0.1), tiny_preprocessor(family))
        task.compile(AdamW(1e-3, epsilon=1.0))  # the epsilon is so large that rounding errors stay small
        x, _ = tiny_examples(task, 11)
        callbacks: list[keras.callbacks.Callback] = [] if folder is None else [ResumableCheckpoint(folder, every=1)]
        if steps is not None:
            callbacks.append(_EndAfter(steps))
        with contextlib.suppress(Interrupted):
            task.fit(x, batch_size=4, epochs=3, verbose=0, callbacks=callbacks)
        return task

    if keras.distribution.distribution() is None:
        yield run(None, None).get_weights()
        return
    with tempfile.TemporaryDirectory() as folder:
        for steps in (2, 5):
            run(Path(folder), steps)
        yield run(Path(folder), None).get_weights()


class _EndAfter(keras.callbacks.Callback):
    """Raises an error after a number of steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise Interrupted


WAYS = {use.__name__: use for use in (token_features, dataset, accumulation, lora, mixed_precision, resumed)}


# === On one device, and on several ===


@contextlib.contextmanager
def mesh_of(shape: tuple[int, int], family: Family) -> Iterator[None]:
    """All devices in a mesh: parts of the batch, and parts of the weights."""
    mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), keras.distribution.list_devices())
    layouts = layout_map(tiny_task(models.TextClassifier, family), mesh)
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch"))
    yield
    keras.distribution.set_distribution(None)


def results(use: Callable[[], Iterator[Any]]) -> list[Any]:
    keras.utils.set_random_seed(3)
    return [np.asarray(x) for x in keras.tree.flatten(list(use()))]


def compare(shape: tuple[int, int], name: str) -> None:
    use = WAYS[name] if name in WAYS else functools.partial(fit_of_family, name)
    expected = results(use)
    with mesh_of(shape, wide(families()["bert" if name in WAYS else name])):
        found = results(use)
    assert len(expected) == len(found) > 0
    tolerance = TOLERANCES.get(name, 1e-5)
    for one, several in zip(expected, found, strict=True):
        np.testing.assert_allclose(several, one, atol=tolerance, rtol=tolerance)
    print(shape, name, len(found), "arrays")


if __name__ == "__main__":
    batch, model = map(int, sys.argv[1].split("x"))
    for name in sys.argv[2:]:
        compare((batch, model), name)
    print("equal")
