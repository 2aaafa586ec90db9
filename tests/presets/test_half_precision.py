"""Presets that store their weights as float16: half the bytes, read by Keras, and as good as before."""

from __future__ import annotations

import h5py
import keras
import numpy as np
import pytest

import lmzoo
from lmzoo.checkpoints.formats.hdf5 import in_half_precision
from lmzoo.errors import PresetError
from lmzoo.presets import verify_manifest
from lmzoo.presets.keras_preset import save_preset
from lmzoo.registry.family import families
from lmzoo.testing import randomize, tiny_task

TEXTS = [
    "The ship [MASK] the harbour at dawn, and nobody on it had seen the island before.",
    "She opened the [MASK] and went in. It was a quiet, lovely house by the sea.",
    "They talked about [MASK] for an hour, and then about the war.",
]
FILES = ("model.weights.h5", "task.weights.h5")


def saved(task, folder, **arguments):
    save_preset(task, folder, preprocessor=task.preprocessor, **arguments)
    return folder


def datasets(path):
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.__setitem__(name, (dict(item.attrs), getattr(item, "dtype", None))))
    return found


def test_the_files(tmp_path):
    """The same datasets and attributes; what float16 cannot hold stays as it is."""
    task = tiny_task(lmzoo.models.MaskedLM, families()["bert"])
    randomize(task)

    large = task.backbone.weights[3]
    large.assign(keras.ops.ones_like(large.value) * 70_000.0)
    whole, half = saved(task, tmp_path / "whole"), saved(task, tmp_path / "half", half_precision=True)
    kept = 0
    for name in FILES:
        before, after = datasets(whole / name), datasets(half / name)
        assert {path: attributes for path, (attributes, _) in before.items()} == {p: a for p, (a, _) in after.items()}
        kinds = [str(dtype) for _, dtype in after.values() if dtype is not None]
        assert set(kinds) <= {"float16", "float32"}
        kept += kinds.count("float32")
    assert kept == 1
    verify_manifest(half)
    again = lmzoo.models.MaskedLM.from_preset(half)
    for weight, before in zip(again.weights, task.weights, strict=True):
        assert weight.dtype == "float32"
        expected = np.asarray(in_half_precision(np.asarray(before)), "float32")
        np.testing.assert_array_equal(weight, expected)
    backbone = lmzoo.models.Backbone.from_preset(half, load_weights=False)
    backbone.load_weights(half / FILES[0])  # Keras by itself
    for ours, theirs in zip(again.backbone.weights, backbone.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    (half / FILES[0]).write_bytes((half / FILES[0]).read_bytes()[:-100])
    with pytest.raises(PresetError, match="was altered"):
        lmzoo.models.MaskedLM.from_preset(half)


def test_arrays():
    for values, dtype in (([1.0, -65_504.0], "float16"), ([1.0, 7e4], "float32"), ([np.nan], "float32")):
        found = in_half_precision(np.array(values, "float32"))
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.array(values, "float32"))
    assert in_half_precision(np.array([1, 2])).dtype == "int64"


@pytest.mark.parametrize(
    "preset", ["bert_nano_en_uncased@1", pytest.param("albert_nano_en_uncased", marks=pytest.mark.slow)]
)
def test_what_is_lost(tmp_path, preset):
    """Of a preset with learned weights: less than a thousandth in the loss, and half of the bytes."""
    whole = lmzoo.models.MaskedLM.from_preset(preset)
    half = lmzoo.models.MaskedLM.from_preset(saved(whole, tmp_path / "half", half_precision=True))
    before, after = (sum((folder / name).stat().st_size for name in FILES) for folder in (
        saved(whole, tmp_path / "whole"), tmp_path / "half"
    ))  # fmt: skip
    assert after < 0.53 * before
    logits, found = (model.predict(TEXTS, verbose=0) for model in (whole, half))
    assert 0 < np.abs(found - logits).max() <= 1e-2 * np.abs(logits).max()
    losses = [model.evaluate(TEXTS * 8, verbose=0, return_dict=True)["loss"] for model in (whole, half)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
