"""LoRA, int8, freezing and checks of layers that compute only predictions, which are not part of a backbone's graph."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.families.deberta_v3 import FAMILY as DEBERTA
from lmzoo.families.t5 import FAMILY as T5
from lmzoo.testing import tiny_backbone
from tests.reference.weights import to_numpy

pytestmark = pytest.mark.usefixtures("eager")
CASES = {
    "output_projection": (T5, {"tie_embeddings": False, "num_layers": 1, "decoder_layers": 1}),
    "absolute_positions": (DEBERTA, {"enhanced_mask_decoder": True, "num_layers": 1}),
}


def make_backbone(name):
    family, changes = CASES[name]
    return tiny_backbone(family, **changes)


def save_and_load(backbone, directory):
    backbone.save(directory / "backbone.keras")
    return keras.saving.load_model(directory / "backbone.keras")


@pytest.mark.parametrize("name", CASES)
def test_lora_freezes_them(name):
    backbone = make_backbone(name)
    backbone.enable_lora(2)
    assert {weight.path.rpartition("_")[0] for weight in backbone.trainable_weights} <= {
        weight.path.rpartition("_")[0] for weight in backbone.weights if "lora_kernel" in weight.path
    }


@pytest.mark.parametrize("name", CASES)
def test_their_updates_are_in_files_of_updates(name, tmp_path):
    backbone = make_backbone(name)
    backbone.enable_lora(2, (name,))
    update = getattr(backbone, name).weights[-1]
    update.assign(np.random.default_rng(3).normal(size=update.shape))
    backbone.save_lora_weights(tmp_path / "a.lora.h5")
    loaded = make_backbone(name)
    loaded.load_lora_weights(tmp_path / "a.lora.h5")
    np.testing.assert_array_equal(to_numpy(getattr(loaded, name).weights[-1]), to_numpy(update))


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("no_garbage_collection")
def test_int8_is_saved_and_loaded(name, tmp_path):
    backbone = make_backbone(name)
    backbone.quantize("int8")
    loaded = save_and_load(backbone, tmp_path)
    for weight, expected in zip(getattr(loaded, name).weights, getattr(backbone, name).weights, strict=True):
        assert weight.dtype == expected.dtype
        np.testing.assert_array_equal(to_numpy(weight), to_numpy(expected))
    assert getattr(loaded, name).weights[0].dtype == "int8"


@pytest.mark.parametrize("name", CASES)
def test_a_frozen_one_stays_frozen(name, tmp_path):
    backbone = make_backbone(name)
    getattr(backbone, name).trainable = False
    loaded = save_and_load(backbone, tmp_path)
    assert not getattr(loaded, name).trainable
    assert {w.path for w in loaded.trainable_weights} == {w.path for w in backbone.trainable_weights}


@pytest.mark.parametrize("name", CASES)
def test_nan_is_reported(name, tmp_path):
    backbone = make_backbone(name)
    weight = getattr(backbone, name).weights[0]
    weight.assign(np.full(weight.shape, np.nan))
    with pytest.warns(UserWarning, match=f"saved: '{name}/.*' is NaN or infinite"):
        backbone.save_weights(tmp_path / "a.weights.h5")
    with pytest.warns(UserWarning, match=f"loaded: '{name}/.*' is NaN or infinite"):
        make_backbone(name).load_weights(tmp_path / "a.weights.h5")
