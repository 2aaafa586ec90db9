"""ELMo against an independent forward pass in numpy."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests.families.elmo_models import LENGTHS, TINY, WIDTH, arrays, layers_and_state, tiny_batch, tiny_elmo
from tests.reference.elmo import mix, reference_of
from tests.reference.weights import difference, run

TOLERANCE = 1e-5
ACTIVE = {"cell_clip": 0.4, "projection_clip": 0.05}  # bounds that these weights reach

VARIANTS = {
    "as released": {},
    "no skip connections": {"skip_connections": False},
    "clips that act": ACTIVE,
    "no clips": {"cell_clip": None, "projection_clip": None},
    "memory without projection": {"lstm_dim": TINY["projection_dim"], **ACTIVE},
    "filters without projection": {"filters": ((1, 2), (2, 4), (3, 7))},
    "no highway": {"num_highway": 0},
    "three highways": {"num_highway": 3},
    "tanh": {"activation": "tanh"},
    "one layer": {"num_layers": 1},
    "three layers": {"num_layers": 3},
    "full width": {"max_characters": 50},
    "tokens": {"vocabulary_size": 31, "start_token_id": 5, "end_token_id": 3},
}


def expected_layers(backbone, batch, state=None, **changes):
    """Return all layers with markers, and the state, of each row."""
    reference = reference_of(backbone, **changes)
    (ids,) = batch.values()
    rows = [row[:n] for row, n in zip(ids, LENGTHS, strict=True)]
    results = [reference.sentence(row, state and state[i]) for i, row in enumerate(rows)]
    layers, states = zip(*results, strict=True)
    return list(layers), list(states)


def by_rows(layers):
    """Return layers (B, T, 2P) as one array (layers, length, 2P) per row."""
    return [np.stack([layer[row, : n + 2] for layer in layers]) for row, n in enumerate(LENGTHS)]


@pytest.mark.slow_cases("full width", "no skip connections", "tanh", "three highways", "three layers")
@pytest.mark.parametrize("name", VARIANTS)
def test_elmo_equals_numpy(name):
    backbone = tiny_elmo(**VARIANTS[name])
    batch = tiny_batch(backbone)
    expected, states = expected_layers(backbone, batch)
    layers, mask, state = layers_and_state(backbone, batch)
    assert mask.sum(1).tolist() == [n + 2 for n in LENGTHS]
    assert difference(by_rows(layers), expected) <= TOLERANCE
    assert all(not layer[~mask.astype(bool)].any() for layer in layers)

    outputs = run(backbone, batch)
    for row, n in enumerate(LENGTHS):
        for k, layer in enumerate(outputs["hidden_states"]):
            assert difference(layer[row, :n], expected[row][k, 1:-1]) <= TOLERANCE
            assert not layer[row, n:].any()
    mixed = mix(expected, [0.0] * len(layers), 1.0)
    for row, n in enumerate(LENGTHS):
        assert difference(outputs["sequence_output"][row, :n], mixed[row]) <= TOLERANCE
        assert not outputs["sequence_output"][row, n:].any()
        mean = mixed[row].mean(0) if n else np.zeros(backbone.config.hidden_dim)
        assert difference(outputs["pooled_output"][row], mean) <= TOLERANCE

    for d, direction in enumerate(("forward", "backward")):
        for k in range(backbone.config.num_layers):
            actual = [[part[row] for part in state[direction][k]] for row in range(len(LENGTHS))]
            assert difference(actual, [states[row][d][k] for row in range(len(LENGTHS))]) <= TOLERANCE
    # A second call continues from the state.
    expected_again, _ = expected_layers(backbone, batch, states)
    assert difference(by_rows(layers_and_state(backbone, batch, state)[0]), expected_again) <= TOLERANCE


@pytest.mark.parametrize("norm", [None, "bilm_tf", "allennlp"])
def test_mixes_equal_numpy(norm):
    backbone = tiny_elmo(layer_norm=norm)
    scalars, gamma = [0.3, -0.7, 1.1], 1.3
    backbone.scalar_mix.scalars.assign(scalars)
    backbone.scalar_mix.gamma.assign(gamma)
    batch = tiny_batch(backbone)
    expected = mix(expected_layers(backbone, batch)[0], scalars, gamma, norm)
    outputs = run(backbone, batch)
    mixed = [outputs["sequence_output"][row, :n] for row, n in enumerate(LENGTHS)]
    assert difference(mixed, expected) <= TOLERANCE
    assert not outputs["sequence_output"][1, LENGTHS[1] :].any()


@pytest.mark.slow
def test_columns_of_padding_may_be_left_out():
    # Words of 3 to 8 symbols; the widest filter spans 3.
    backbone = tiny_elmo()
    ids = tiny_batch(backbone, longest=6)["character_ids"]
    expected = run(backbone, {"character_ids": ids})
    for columns in range(8, WIDTH):
        assert difference(run(backbone, {"character_ids": ids[..., :columns]}), expected) <= 1e-6
    # Padding is not restored for words that fill all columns.
    full = tiny_elmo(max_characters=8)
    vectors = run(full, {"character_ids": ids[..., :8]})["hidden_states"][0]
    reference = reference_of(full)
    assert difference(vectors[0, 0, : TINY["projection_dim"]], reference.word(ids[0, 0, :8])) <= TOLERANCE
    assert difference(vectors, expected["hidden_states"][0]) > 100 * TOLERANCE


def test_word_vectors_may_replace_characters():
    backbone = tiny_elmo()
    batch = tiny_batch(backbone)
    ids = batch["character_ids"]
    # Vectors without a positive component are also of words.
    vectors = arrays(backbone.word_vectors(ids.reshape(-1, WIDTH))).reshape(*ids.shape[:2], -1)
    reference = reference_of(backbone)
    assert difference(vectors[0, 0], reference.word(ids[0, 0])) <= TOLERANCE
    cached = {"word_vectors": vectors, "padding_mask": (ids > 0).any(-1)}
    state = layers_and_state(backbone, batch)[2]
    assert difference(layers_and_state(backbone, cached), layers_and_state(backbone, batch)) <= TOLERANCE
    assert difference(layers_and_state(backbone, cached, state), layers_and_state(backbone, batch, state)) <= TOLERANCE
    if keras.backend.backend() == "tensorflow":
        outputs, _ = backbone.call_with_state(cached)
        assert difference(arrays(outputs), run(backbone, batch)) <= TOLERANCE


@pytest.mark.slow
def test_rows_keep_their_states_when_batch_sizes_change():
    backbone = tiny_elmo()
    reference, states = reference_of(backbone), {}
    state = None
    for sizes in ((3, 1, 2), (4,), (0, 2, 1, 5, 2), (1, 3)):
        batch = tiny_batch(backbone, lengths=sizes, seed=sum(sizes))
        layers, _, state = layers_and_state(backbone, batch, state)
        for row, n in enumerate(sizes):
            expected, states[row] = reference.sentence(batch["character_ids"][row, :n], states.get(row))
            assert difference([layer[row, : n + 2] for layer in layers], list(expected)) <= TOLERANCE
    assert state["forward"][0][0].shape == (5, TINY["lstm_dim"])
    for row in range(5):
        assert difference(state["backward"][1][0][row], states[row][1][1][0]) <= TOLERANCE
        assert difference(state["backward"][1][1][row], states[row][1][1][1]) <= TOLERANCE


def test_each_direction_may_read_its_own_words():
    """In training, both directions read different words, without markers."""
    backbone = tiny_elmo()
    rng = np.random.default_rng(3)
    forward, backward = rng.normal(size=(2, 5, 3, TINY["projection_dim"])).astype("float32")  # (T, B, P)
    outputs, state = backbone.bilm.run_stacks(forward, backward, None, None)
    reference = reference_of(backbone)
    for row in range(3):
        for d, x in enumerate((forward, backward)):
            layers, after = reference.stack(d, x[:, row], None)
            for k, layer in enumerate(layers):
                assert difference(arrays(outputs[k][d])[:, row], layer) <= TOLERANCE
            memory, output = state[("forward", "backward")[d]][1]
            assert difference(arrays(memory)[row], after[1][0]) <= TOLERANCE
            assert difference(arrays(output)[row], after[1][1]) <= TOLERANCE
