"""The original implementation's own test model: weights, sentences and embeddings that it computed."""

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

TOLERANCE = 1e-5
BATCHES = 10
WITHOUT_CELL_CLIP = 4.3e-4  # by how much a missing cell clip is wrong: the tolerance must be far below


@pytest.fixture(scope="module")
def folder(shared):
    return shared("fixtures/bilm_tf")


@pytest.fixture(scope="module")
def reference(shared):
    return np.load(shared("fixtures/reference/bilm_tf.npz"))


@pytest.fixture(scope="module")
def sentences(folder):
    """By the number of a batch its three sentences."""
    lists = json.loads((folder / "lm_embeddings_sentences.json").read_text("utf-8"))
    return {i: [rows[i].split() for rows in lists] for i in range(BATCHES)}


def load(folder, **changes):
    backbone = Backbone.from_preset(folder, **changes)
    assert isinstance(backbone, ElmoBackbone)
    return backbone


def inputs(batch):
    # On JAX, which compiles each shape, all are padded alike.
    extra = 53 - max(map(len, batch)) if keras.backend.backend() == "jax" else 0
    return {"character_ids": batch_ids(batch, 50, extra=extra)}


def run_all(backbone, sentences, stateful):
    """By the number of a batch the layers with markers and the number of words of each row; the last state."""
    state, results = None, {}
    for i, batch in sentences.items():
        marked, _, after = layers_and_state(backbone, inputs(batch), state)
        state = after if stateful else None
        results[i] = marked, list(map(len, batch))
    return results, after


def error_to_original(folder, results):
    """Largest difference to the embeddings that the original computed: both directions of the top layer."""
    worst = 0.0
    for k in range(3):
        with h5py.File(folder / f"lm_embeddings_{k}.hdf5") as file:
            for i, (marked, lengths) in results.items():
                words = marked[-1][k, 1 : lengths[k] + 1]  # (T, 2P)
                found = np.stack(np.split(words, 2, axis=1))  # (2, T, P)
                worst = max(worst, difference(found, file[str(i)][()]))
    return worst


def test_equals_the_original(folder, reference, sentences):
    results, state = run_all(load(folder), sentences, stateful=True)
    assert error_to_original(folder, results) <= TOLERANCE
    for i, (marked, lengths) in results.items():
        for k, n in enumerate(lengths):
            assert (
                difference([layer[k, : n + 2] for layer in marked], list(reference[f"stateful_{k}_{i}"])) <= TOLERANCE
            )
    for d, direction in enumerate(("forward", "backward")):
        for layer, (memory, output) in enumerate(state[direction]):
            assert difference(memory, reference[f"final_c_dir{d}_layer{layer}"]) <= TOLERANCE
            assert difference(output, reference[f"final_m_dir{d}_layer{layer}"]) <= TOLERANCE


@pytest.mark.quick_cases("batches1")
@pytest.mark.parametrize("batches", [(3, 5, 9), pytest.param(range(BATCHES), marks=pytest.mark.slow)])
def test_a_call_without_state_starts_anew(folder, reference, sentences, batches):
    results, _ = run_all(load(folder), {i: sentences[i] for i in batches}, stateful=False)
    for i, (marked, lengths) in results.items():
        for k, n in enumerate(lengths):
            expected = list(reference[f"stateless_{k}_{i}"])
            assert difference([layer[k, : n + 2] for layer in marked], expected) <= TOLERANCE
    assert error_to_original(folder, results) > 0.1


@pytest.mark.quick_cases("10")
@pytest.mark.parametrize("count", [2, pytest.param(BATCHES, marks=pytest.mark.slow)])
def test_the_tolerance_shows_a_missing_cell_clip(folder, sentences, count):
    results, _ = run_all(load(folder, cell_clip=None), {i: sentences[i] for i in range(count)}, stateful=True)
    error = error_to_original(folder, results)
    assert error > 10 * TOLERANCE
    if count == BATCHES:
        assert error == pytest.approx(WITHOUT_CELL_CLIP, rel=0.1)


@pytest.mark.parametrize("norm", ["none", "allennlp", "bilm_tf"])
def test_mixes(folder, reference, norm):
    backbone = load(folder, layer_norm=None if norm == "none" else norm)
    backbone.scalar_mix.scalars.assign([0.1, 0.3, 0.5])
    backbone.scalar_mix.gamma.assign(1.1)
    texts = [text.split() for text in ("The first sentence .", "The second", "Third")]
    mixed = run(backbone, {"character_ids": batch_ids(texts, 50)})["sequence_output"]
    for row, words in enumerate(texts):
        assert difference(mixed[row, : len(words)], reference[f"mix_{norm}_{row}"]) <= TOLERANCE
