"""Presets with weights in float16 or int8: fewer bytes, and nearly the same predictions."""

from __future__ import annotations

import errno
import tempfile

import h5py
import keras
import numpy as np
import pytest

import lmzoo
from lmzoo.checkpoints.formats import hdf5
from lmzoo.checkpoints.formats.hdf5 import SCALE, convert_to_float16, decode_int8_file, quantize_rows, write_hdf5
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


def save(task, folder, **arguments):
    save_preset(task, folder, preprocessor=task.preprocessor, **arguments)
    return folder


def read_datasets(path):
    items = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: items.__setitem__(name, (dict(item.attrs), getattr(item, "dtype", None))))
    return items


def test_float16_files_hold_the_same_datasets(tmp_path):
    """Arrays that float16 cannot hold stay in float32."""
    task = tiny_task(lmzoo.models.MaskedLM, families()["bert"])
    randomize(task)
    large = task.backbone.weights[3]
    large.assign(keras.ops.ones_like(large.value) * 70_000.0)
    float32_folder = save(task, tmp_path / "whole")
    float16_folder = save(task, tmp_path / "half", weights_dtype="float16")
    float32_count = 0
    for name in FILES:
        before, after = read_datasets(float32_folder / name), read_datasets(float16_folder / name)
        assert {path: attributes for path, (attributes, _) in before.items()} == {p: a for p, (a, _) in after.items()}
        dtypes = [str(dtype) for _, dtype in after.values() if dtype is not None]
        assert set(dtypes) <= {"float16", "float32"}
        float32_count += dtypes.count("float32")
    assert float32_count == 1
    verify_manifest(float16_folder)
    reloaded = lmzoo.models.MaskedLM.from_preset(float16_folder)
    for weight, before in zip(reloaded.weights, task.weights, strict=True):
        assert weight.dtype == "float32"
        expected = np.asarray(convert_to_float16(np.asarray(before)), "float32")
        np.testing.assert_array_equal(weight, expected)
    backbone = lmzoo.models.Backbone.from_preset(float16_folder, load_weights=False)
    backbone.load_weights(float16_folder / FILES[0])  # Keras without lmzoo's loader
    for ours, theirs in zip(reloaded.backbone.weights, backbone.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    (float16_folder / FILES[0]).write_bytes((float16_folder / FILES[0]).read_bytes()[:-100])
    with pytest.raises(PresetError, match="was altered"):
        lmzoo.models.MaskedLM.from_preset(float16_folder)


def test_int8_files_hold_255_steps_per_row(tmp_path):
    """The loaded model is in float32, and Keras alone refuses the file."""
    task = tiny_task(lmzoo.models.MaskedLM, families()["bert"])
    randomize(task)
    task.backbone.weights[3].assign(keras.ops.full_like(task.backbone.weights[3].value, np.nan))
    with pytest.warns(UserWarning, match="NaN"):
        task.save_to_preset(tmp_path / "small", weights_dtype="int8")
    stored = {name: str(dtype) for name, (_, dtype) in read_datasets(tmp_path / "small" / FILES[0]).items() if dtype}
    matrices = [name for name, dtype in stored.items() if dtype == "int8"]
    assert len(matrices) == sum(len(weight.shape) > 1 for weight in task.backbone.weights)
    assert all(stored[name + SCALE] == "float32" for name in matrices)
    verify_manifest(tmp_path / "small")
    reloaded = lmzoo.models.MaskedLM.from_preset(tmp_path / "small")
    for weight, before in zip(reloaded.backbone.weights, task.backbone.weights, strict=True):
        assert weight.dtype == "float32"
        expected = np.asarray(before)
        if expected.ndim > 1:
            largest = np.abs(expected).max(axis=-1, keepdims=True)
            assert (np.abs(weight - expected) <= largest / 253).all()
            np.testing.assert_allclose(np.abs(weight).max(axis=-1, keepdims=True), largest, rtol=1e-6)
        else:
            np.testing.assert_array_equal(weight, expected.astype("float16"))
    backbone = lmzoo.models.Backbone.from_preset(tmp_path / "small", load_weights=False)
    with pytest.raises(ValueError, match="could not be loaded"):
        backbone.load_weights(tmp_path / "small" / FILES[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_matrices_in_half_precision_become_int8(dtype, tmp_path):
    task = tiny_task(lmzoo.models.MaskedLM, families()["bert"]).copy_with(dtype=dtype)
    task.save_to_preset(tmp_path, weights_dtype="int8")
    stored = read_datasets(tmp_path / FILES[0])
    scaled = {name.removesuffix(SCALE) for name in stored if name.endswith(SCALE)}
    assert len(scaled) == sum(len(weight.shape) > 1 for weight in task.backbone.weights)
    assert {str(stored[name][1]) for name in scaled} == {"int8"}
    reloaded = lmzoo.models.MaskedLM.from_preset(tmp_path)
    for weight, before in zip(reloaded.backbone.weights, task.backbone.weights, strict=True):
        expected = np.asarray(before, "float32")
        largest = np.abs(expected).max(axis=-1, keepdims=True)
        assert weight.dtype == dtype
        assert (np.abs(np.asarray(weight, "float32") - expected) <= largest / 100).all()


def test_scales_must_fit_the_matrices(tmp_path):
    task = tiny_task(lmzoo.models.MaskedLM, families()["bert"])
    task.save_to_preset(tmp_path / "small", weights_dtype="int8")
    (tmp_path / "small/manifest.json").unlink()
    with h5py.File(tmp_path / "small" / FILES[0], "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = next(name for name in names if name.endswith(SCALE))
        scale = file[name][()]
        del file[name]
        file[name] = scale[:-1]
    message = rf"{FILES[0]} cannot be read.*{name.removesuffix(SCALE)} int8 .* does not fit"
    with pytest.raises(PresetError, match=message):
        lmzoo.models.MaskedLM.from_preset(tmp_path / "small")
    with pytest.raises(ValueError, match="`weights_dtype` must be one of float32, float16, int8"):
        task.save_to_preset(tmp_path / "other", weights_dtype="int4")


def test_room_is_reserved_for_decoded_matrices(tmp_path, monkeypatch):
    """HDF5 ends the process if the disk is full when a file is closed."""
    write_hdf5(tmp_path / "small.h5", [("a", np.ones((257, 131), "int8")), ("a" + SCALE, np.ones(257, "float32"))])
    sizes = []
    monkeypatch.setattr(hdf5, "check_room", lambda directory, size: sizes.append(size))
    with decode_int8_file(tmp_path / "small.h5") as decoded_file:
        decoded_size = decoded_file.stat().st_size
    assert 257 * 131 * 4 <= decoded_size <= sizes[0] < 1.1 * decoded_size


def test_a_disk_too_full_for_decoded_matrices_is_named(tmp_path, monkeypatch):
    def fail(directory, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    task = tiny_task(lmzoo.models.MaskedLM, families()["bert"])
    task.save_to_preset(tmp_path / "small", weights_dtype="int8")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(hdf5, "check_room", fail)
    message = rf"^{tmp_path}/small/{FILES[0]} is decoded in {tmp_path}/temporary, where the disk is full"
    with pytest.raises(PresetError, match=message):
        lmzoo.models.MaskedLM.from_preset(tmp_path / "small")
    assert not list((tmp_path / "temporary").iterdir())


def test_rows_are_quantized_by_their_largest_value():
    values = np.array([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5]], "float32")
    quantized = quantize_rows(values)
    np.testing.assert_array_equal(quantized[""], np.array([[0, 0, 0], [64, -127, 32]], "int8"))
    np.testing.assert_allclose(quantized[SCALE], [0, 2 / 127], rtol=1e-6)
    assert list(quantize_rows(np.array([[np.inf, 1.0]], "float32"))) == [""]
    assert quantize_rows(values[0])[""].dtype == "float16"


def test_values_beyond_float16_stay_float32():
    for values, dtype in (([1.0, -65_504.0], "float16"), ([1.0, 7e4], "float32"), ([np.nan], "float32")):
        converted = convert_to_float16(np.array(values, "float32"))
        assert converted.dtype == dtype
        np.testing.assert_array_equal(converted, np.array(values, "float32"))
    assert convert_to_float16(np.array([1, 2])).dtype == "int64"


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["bert_nano_en_uncased@1", "albert_nano_en_uncased"])
def test_float16_halves_the_bytes_and_keeps_the_loss(tmp_path, preset):
    task = lmzoo.models.MaskedLM.from_preset(preset)
    float16_task = lmzoo.models.MaskedLM.from_preset(save(task, tmp_path / "half", weights_dtype="float16"))
    save(task, tmp_path / "whole")
    sizes = {name: sum((tmp_path / name / file).stat().st_size for file in FILES) for name in ("half", "whole")}
    assert sizes["half"] < 0.53 * sizes["whole"]
    expected, actual = (model.predict(TEXTS, verbose=0) for model in (task, float16_task))
    assert 0 < np.abs(actual - expected).max() <= 1e-2 * np.abs(expected).max()
    losses = [model.evaluate(TEXTS * 8, verbose=0, return_dict=True)["loss"] for model in (task, float16_task)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
