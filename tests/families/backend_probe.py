"""Outputs of a tiny masked language model with given weights, written to one file of arrays.

Run as a program with `weights.npz outputs.npz`, on any backend, to compare the backends.
"""

from __future__ import annotations

import sys

import keras
import numpy as np

from lmzoo.models import MaskedLM
from lmzoo.training import AdamW
from tests.reference.weights import MASK_POSITIONS, padded_batch, run, tiny_masked_lm, to_numpy

LEARNING_RATE = 1e-3


def load_weights(model: MaskedLM, weights: dict[str, np.ndarray]) -> None:
    assert sorted(weights) == sorted(weight.path for weight in model.weights)
    for weight in model.weights:
        weight.assign(weights[weight.path])


def weights_of(model: MaskedLM) -> dict[str, np.ndarray]:
    return {weight.path: to_numpy(weight.value) for weight in model.weights}


def probe(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return outputs of the forward pass, the loss of a training step without dropout, and the weights after it."""
    model, batch = tiny_masked_lm(seed=0), padded_batch()
    load_weights(model, weights)
    outputs = run(model.backbone, batch)
    inputs = {**batch, "mask_positions": MASK_POSITIONS}
    results = {f"hidden_states/{i}": state for i, state in enumerate(outputs["hidden_states"])}
    results |= {"pooled_output": outputs["pooled_output"], "logits": run(model, inputs)}
    # With a small epsilon, Adam's first step would be the gradient's sign, which a rounding error may flip.
    model.compile(AdamW(LEARNING_RATE, epsilon=1e-3, global_clipnorm=1.0))
    targets = np.arange(MASK_POSITIONS.size).reshape(MASK_POSITIONS.shape)
    sample_weight = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 0]], "float32")
    results["loss"] = np.asarray(model.train_on_batch(inputs, targets, sample_weight=sample_weight)[0])
    return results | {f"updated/{path}": value for path, value in weights_of(model).items()}


if __name__ == "__main__":
    np.savez(sys.argv[2], backend=keras.backend.backend(), **probe(dict(np.load(sys.argv[1]))))
