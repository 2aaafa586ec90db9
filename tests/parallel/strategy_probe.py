"""Trains and predicts with a strategy of TensorFlow on two virtual devices, in a separate process: `python -m`.

Prints "equal" if predictions equal those of one device. (After training they do not: see docs/guides/scale.md.)
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from lmzoo import models
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_texts


def small_task() -> models.TextClassifier:
    family = families()["bert"]
    task = models.TextClassifier(tiny_backbone(family, num_layers=1), tiny_preprocessor(family), num_classes=3)
    task.compile(keras.optimizers.SGD(0.1))
    return task


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        task = small_task()
    texts = tiny_texts(6)
    # Outside of the scope, like any Keras model.
    losses = task.fit(texts, [0, 1, 2] * 2, batch_size=6, epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]
    alone = small_task()
    alone.set_weights(task.get_weights())
    np.testing.assert_allclose(task.predict(texts, verbose=0), alone.predict(texts, verbose=0), atol=1e-5)
    print("equal")
