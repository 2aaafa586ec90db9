"""AWD-LSTM's dropouts (Merity et al., 2018): their masks, and layers against numpy with the same masks."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.families.lstm_lm import FAMILY
from lmzoo.layers import Dropout, LockedDropout, RecurrentLayer, WordDropout
from lmzoo.layers.recurrent import CELLS
from lmzoo.models import LstmLmBackbone
from lmzoo.testing import tiny_backbone
from tests.reference import left_to_right
from tests.reference.weights import to_numpy

B, T, D, H, V = 3, 7, 5, 11, 29
RNG = np.random.default_rng(2203)
AWD = {"word_dropout": 0.2, "input_dropout": 0.4, "hidden_dropout": 0.25, "weight_dropout": 0.5, "locked_dropout": True}


def test_a_locked_mask_is_the_same_in_all_steps_and_differs_between_sequences():
    x = RNG.normal(size=(B, T, 101)).astype("float32")
    factors = to_numpy(LockedDropout(0.25, seed=3)(x, training=True)) / x
    np.testing.assert_allclose(factors, np.repeat(factors[:, :1], T, axis=1), rtol=1e-6)
    is_kept = factors[:, 0] > 0
    np.testing.assert_allclose(factors[:, 0][is_kept], 1 / 0.75, rtol=1e-6)
    assert 0.6 < is_kept.mean() < 0.9
    assert (is_kept[0] != is_kept[1]).any()
    np.testing.assert_array_equal(to_numpy(LockedDropout(0.25)(x)), x)


def test_word_dropout_drops_whole_rows_of_the_table_and_scales_the_others():
    x = RNG.normal(size=(B, T, D)).astype("float32")
    ids = RNG.integers(0, V, (B, T)).astype("int32")
    ids[1] = ids[0]  # every token of the first sequence occurs again
    factors = to_numpy(WordDropout(0.5, V, seed=3)(x, ids, training=True)) / x  # (B, T, D)
    by_id = np.full(V, -1.0)
    by_id[ids] = factors[:, :, 0]
    np.testing.assert_allclose(factors, np.broadcast_to(by_id[ids][:, :, None], x.shape), rtol=1e-6)
    assert set(by_id[ids].ravel().round(5)) == {0.0, 2.0}


@pytest.mark.parametrize("cell", sorted(CELLS))
def test_weight_dropout_against_numpy(cell):
    layer = RecurrentLayer(cell, H, weight_dropout=0.5)
    layer.build((B, T, D))
    for weight in layer.weights:
        weight.assign(RNG.normal(scale=0.5, size=weight.shape))
    weights = {w.name: to_numpy(w).astype("float64") for w in layer.weights}
    x = RNG.normal(size=(B, T, D)).astype("float32")
    seed = np.array(keras.ops.convert_to_numpy(layer.weight_dropout.seed_generator.state))
    outputs = to_numpy(layer(x, training=True)[-1])
    peer = Dropout(0.5)  # draws the same mask as the layer
    peer.seed_generator.state.assign(seed)
    mask = to_numpy(peer(np.ones((H, CELLS[cell] * H), "float32"), training=True))
    assert set(mask.ravel()) == {0.0, 2.0}
    dropped = {**weights, "recurrent_kernel": weights["recurrent_kernel"] * mask}  # no other weight
    np.testing.assert_allclose(outputs, left_to_right.CELLS[cell](x, dropped)[1], atol=1e-5)
    np.testing.assert_allclose(to_numpy(layer(x)[-1]), left_to_right.CELLS[cell](x, weights)[1], atol=1e-5)


def test_a_backbone_applies_all_dropouts():
    backbone = tiny_backbone(FAMILY, dropout=0.3, **AWD)
    plain = tiny_backbone(FAMILY, dropout=0.3)
    plain.set_weights(backbone.get_weights())
    ids = RNG.integers(1, 311, (B, T)).astype("int32")
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    expected = to_numpy(plain(inputs)["sequence_output"])
    np.testing.assert_array_equal(to_numpy(backbone(inputs)["sequence_output"]), expected)
    outputs = backbone(inputs, training=True)
    embedded = to_numpy(outputs["hidden_states"][0])
    is_dropped_input = (embedded == 0).all(axis=1)  # (B, H): dropped in all steps
    assert 0.2 < is_dropped_input.mean() < 0.6
    is_dropped = (to_numpy(outputs["sequence_output"]) == 0).all(axis=1)
    assert 0.1 < is_dropped.mean() < 0.5
    with_state, _ = backbone.call_with_state(inputs, training=True)
    assert ((to_numpy(with_state["sequence_output"]) == 0).all(axis=1)).any()
    copy = LstmLmBackbone.from_config(backbone.get_config())
    assert {name: getattr(copy, name) for name in AWD} == AWD
    # Each dropout has its own generator.
    seeds = [v for v in backbone.non_trainable_variables if "seed" in v.path]
    assert len(seeds) == 1 + 1 + 3 + 2 + 1  # words, inputs, recurrent kernels, between layers, output


@pytest.mark.parametrize("name", ["word_dropout", "input_dropout", "hidden_dropout", "weight_dropout"])
def test_wrong_rates_are_refused(name):
    with pytest.raises(ValueError, match=f"`{name}` must be a number in \\[0, 1\\), got 1.0"):
        LstmLmBackbone(vocabulary_size=V, num_layers=1, hidden_dim=H, **{name: 1.0})
    with pytest.raises(ValueError, match="`locked_dropout` must be True or False, got 1"):
        LstmLmBackbone(vocabulary_size=V, num_layers=1, hidden_dim=H, locked_dropout=1)


def test_a_stored_model_loads_with_new_dropouts(tmp_path):
    backbone = tiny_backbone(FAMILY, dropout=0.3)
    backbone.save_to_preset(tmp_path / "plain")
    loaded = LstmLmBackbone.from_preset(tmp_path / "plain", **AWD)
    for weights, expected in zip(loaded.get_weights(), backbone.get_weights(), strict=True):
        np.testing.assert_array_equal(weights, expected)
