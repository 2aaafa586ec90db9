"""What a tiny masked LM computes from given weights, as one file of arrays.

Run as a program with `weights.npz outputs.npz`, under any backend, so that backends can be compared.
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
    assert sorted(weights) == sorted(w.path for w in model.weights)
    for weight in model.weights:
        weight.assign(weights[weight.path])


def weights_of(model: MaskedLM) -> dict[str, np.ndarray]:
    return {w.path: to_numpy(w.value) for w in model.weights}


def probe(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of the forward pass, loss of one training step without dropout, and the weights after it."""
    model, batch = tiny_masked_lm(seed=0), padded_batch()
    load_weights(model, weights)
    outputs = run(model.backbone, batch)
    inputs = {**batch, "mask_positions": MASK_POSITIONS}
    found = {f"hidden_states/{i}": state for i, state in enumerate(outputs["hidden_states"])}
    found |= {"pooled_output": outputs["pooled_output"], "logits": run(model, inputs)}
    # A large epsilon: with a small one Adam's first step is the gradient's sign, and a rounding error may turn it.
    model.compile(AdamW(LEARNING_RATE, epsilon=1e-3, global_clipnorm=1.0))
    targets = np.arange(MASK_POSITIONS.size).reshape(MASK_POSITIONS.shape)
    sample_weight = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 0]], "float32")
    found["loss"] = np.asarray(model.train_on_batch(inputs, targets, sample_weight=sample_weight)[0])
    return found | {f"updated/{path}": value for path, value in weights_of(model).items()}


if __name__ == "__main__":
    np.savez(sys.argv[2], backend=keras.backend.backend(), **probe(dict(np.load(sys.argv[1]))))
