"""The original implementation's own test model: its weights, sentences and the embeddings that it computed."""

from __future__ import annotations

import json

import h5py
import keras
import numpy as np
import pytest

from lmzoo.models import Backbone, ElmoBackbone
from tests.families.elmo_models import layers_and_state
from tests.reference.elmo import batch_ids
from tests.reference.weights import difference, run

TOLERANCE = 1e-5  # without the clipping of the memory, the error is 4.3e-4
BATCHES = 10


@pytest.fixture(scope="module")
def directory(shared):
    return shared("fixtures/bilm_tf")


@pytest.fixture(scope="module")
def reference(shared):
    return np.load(shared("fixtures/reference/bilm_tf.npz"))


@pytest.fixture(scope="module")
def sentences(directory):
    """Three sentences of words for each number of a batch."""
    lists = json.loads((directory / "lm_embeddings_sentences.json").read_text("utf-8"))
    return {i: [rows[i].split() for rows in lists] for i in range(BATCHES)}


def load(directory, **changes):
    backbone = Backbone.from_preset(directory, **changes)
    assert isinstance(backbone, ElmoBackbone)
    return backbone


def inputs(batch):
    # JAX compiles each shape, so there all batches have the same width.
    extra = 53 - max(map(len, batch)) if keras.backend.backend() == "jax" else 0
    return {"character_ids": batch_ids(batch, 50, extra=extra)}


def run_all(backbone, sentences, stateful):
    """Return the layers with markers and the words per row, by the number of the batch, and the last state."""
    state, results = None, {}
    for i, batch in sentences.items():
        layers, _, next_state = layers_and_state(backbone, inputs(batch), state)
        state = next_state if stateful else None
        results[i] = layers, list(map(len, batch))
    return results, next_state


def error_to_original(directory, results):
    """Return the largest difference to the original's embeddings, which are the top layer in both directions."""
    error = 0.0
    for k in range(3):
        with h5py.File(directory / f"lm_embeddings_{k}.hdf5") as file:
            for i, (layers, lengths) in results.items():
                words = layers[-1][k, 1 : lengths[k] + 1]  # (T, 2P)
                embeddings = np.stack(np.split(words, 2, axis=1))  # (2, T, P)
                error = max(error, difference(embeddings, file[str(i)][()]))
    return error


def test_equals_the_original(directory, reference, sentences):
    results, state = run_all(load(directory), sentences, stateful=True)
    assert error_to_original(directory, results) <= TOLERANCE
    for i, (layers, lengths) in results.items():
        for k, n in enumerate(lengths):
            expected = list(reference[f"stateful_{k}_{i}"])
            assert difference([layer[k, : n + 2] for layer in layers], expected) <= TOLERANCE
    for d, direction in enumerate(("forward", "backward")):
        for layer, (memory, output) in enumerate(state[direction]):
            assert difference(memory, reference[f"final_c_dir{d}_layer{layer}"]) <= TOLERANCE
            assert difference(output, reference[f"final_m_dir{d}_layer{layer}"]) <= TOLERANCE


@pytest.mark.slow
def test_calls_without_a_state_are_independent(directory, reference, sentences):
    results, _ = run_all(load(directory), sentences, stateful=False)
    for i, (layers, lengths) in results.items():
        for k, n in enumerate(lengths):
            expected = list(reference[f"stateless_{k}_{i}"])
            assert difference([layer[k, : n + 2] for layer in layers], expected) <= TOLERANCE
    assert error_to_original(directory, results) > 0.1


@pytest.mark.parametrize("norm", ["none", "allennlp", "bilm_tf"])
def test_mixes_equal_the_original(directory, reference, norm):
    backbone = load(directory, layer_norm=None if norm == "none" else norm)
    backbone.scalar_mix.scalars.assign([0.1, 0.3, 0.5])
    backbone.scalar_mix.gamma.assign(1.1)
    texts = [text.split() for text in ("The first sentence .", "The second", "Third")]
    mixed = run(backbone, {"character_ids": batch_ids(texts, 50)})["sequence_output"]
    for row, words in enumerate(texts):
        assert difference(mixed[row, : len(words)], reference[f"mix_{norm}_{row}"]) <= TOLERANCE
