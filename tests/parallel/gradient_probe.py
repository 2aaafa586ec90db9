"""The program of a process group that trains one step on four texts: `python -m` this module, with a directory."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np

from lmzoo import models
from lmzoo.families.bert import FAMILY
from lmzoo.parallel import initialize
from lmzoo.parallel.processes import process_index
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_texts

LABELS = [0, 1, 0, 1]


def train_on(labels: list[int]) -> list[np.ndarray]:
    """Return the weights after one step."""
    classifier = models.TextClassifier(tiny_backbone(FAMILY, num_layers=1), tiny_preprocessor(FAMILY), 2)
    classifier.compile(keras.optimizers.SGD(0.5))
    classifier.fit(tiny_texts(4), labels, batch_size=4, verbose=0)
    return classifier.get_weights()


if __name__ == "__main__":
    initialize(timeout=300)
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    for row in (None, 0, 1, 2, 3):
        labels = [1 - label if i == row else label for i, label in enumerate(LABELS)]
        np.savez(Path(sys.argv[1]) / f"{row} {process_index()}.npz", *train_on(labels))
