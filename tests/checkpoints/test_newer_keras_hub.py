"""Presets that a development version of KerasHub wrote: `keras_hub_models/save.py` made them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

from lmzoo.models import Backbone, MaskedLM, TextClassifier
from lmzoo.presets.converting import save_checkpoint

ARCHIVES = Path(__file__).parent / "keras_hub_models"


def unpack(name, folder):
    with zipfile.ZipFile(ARCHIVES / f"{name}.zip") as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    return unpack("ModernBertMaskedLM", tmp_path_factory.mktemp("masked_lm"))


@pytest.fixture(scope="module")
def expected(preset):
    with np.load(preset / "outputs.npz") as arrays:
        return dict(arrays)


def test_a_modernbert_computes_what_it_computes_in_keras_hub(preset, expected, tmp_path):
    task = MaskedLM.from_preset(preset)
    features = {name: expected[name] for name in ("token_ids", "padding_mask")}
    is_real = features["padding_mask"] > 0
    states = keras.ops.convert_to_numpy(task.backbone(features)["sequence_output"])
    np.testing.assert_allclose(states[is_real], expected["states"][is_real], rtol=1e-5, atol=1e-5)
    logits = task({**features, "mask_positions": expected["mask_positions"]})
    np.testing.assert_allclose(keras.ops.convert_to_numpy(logits), expected["logits"], rtol=1e-5, atol=1e-5)
    save_checkpoint(task.backbone, tmp_path / "written", to="keras_hub")
    again = Backbone.from_preset(tmp_path / "written")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(again(features)["sequence_output"]), states)


def test_its_texts_are_the_same_tokens(preset, expected):
    preprocessor = MaskedLM.from_preset(preset, load_weights=False).preprocessor
    rows = np.split(expected["text_ids"], np.cumsum(expected["text_lengths"])[:-1])
    assert [list(ids) for ids in preprocessor.tokenizer.tokenize(expected["texts"].tolist())] == [*map(list, rows)]
    assert preprocessor.sequence_length == 29


def test_its_classifiers_head_is_another(tmp_path):
    preset = unpack("ModernBertTextClassifier", tmp_path)
    with pytest.warns(UserWarning, match="holds a head of a TextClassifier that lmzoo cannot read, so a new one"):
        assert TextClassifier.from_preset(preset, num_classes=5).preprocessor is not None
