"""`model_max_length` of tokenizer_config.json, and its old name: the longest sequence of a checkpoint's tokenizer."""

from __future__ import annotations

import json
import shutil

import pytest

from lmzoo.checkpoints.tokenizers.config import read_sequence_length
from lmzoo.files.preset_files import JsonFiles
from lmzoo.models import TextClassifier
from lmzoo.presets import PresetError
from lmzoo.presets.converting import convert, save_checkpoint
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from lmzoo.text import TextWarning

SETTINGS = "tokenizer_config.json"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Return Hugging Face's files of a model of 67 positions."""
    directory = tmp_path_factory.mktemp("theirs")
    save_checkpoint(tiny_task(TextClassifier, families()["bert"]), directory, to="hf")
    return directory


@pytest.fixture
def folder(checkpoint, tmp_path):
    return shutil.copytree(checkpoint, tmp_path / "theirs")


def set_length(folder, length) -> None:
    settings = json.loads((folder / SETTINGS).read_text())
    (folder / SETTINGS).write_text(json.dumps({**settings, "model_max_length": length}))


@pytest.mark.parametrize(
    ("length", "expected"), [(23, 23), (67, 67), (512, 67), (10**30, 67), (1e30, 67), (29.0, 29), (None, 67)]
)
def test_the_length_limits_sequences(length, expected, folder):
    set_length(folder, length)
    task = TextClassifier.from_preset(folder)
    assert task.preprocessor.sequence_length == expected
    assert isinstance(task.preprocessor.sequence_length, int)
    with pytest.warns(TextWarning, match=f"truncated to {expected} tokens"):
        assert max(task.encode_inputs(["a " * 400]).lengths) == expected


def test_the_length_is_converted_and_written(folder, tmp_path):
    set_length(folder, 23)
    convert(folder, tmp_path / "keras")
    convert(tmp_path / "keras", tmp_path / "hf", to="hf")
    assert json.loads((tmp_path / "hf" / SETTINGS).read_text())["model_max_length"] == 23
    assert TextClassifier.from_preset(tmp_path / "hf", sequence_length=61).preprocessor.sequence_length == 61


@pytest.mark.parametrize("length", [0, -1, "512", True, [512], float("nan")])
def test_invalid_lengths_are_refused(length, folder):
    set_length(folder, length)
    with pytest.raises(PresetError, match=rf"{SETTINGS}: `model_max_length` must be a positive number, got"):
        TextClassifier.from_preset(folder)


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ({"max_len": 256}, 256),
        ({"max_len": 1024}, 512),
        ({"max_len": 256, "model_max_length": 128}, 128),
        ({"max_len": 256, "model_max_length": None}, 512),
    ],
)
def test_the_length_in_old_files(settings, length, tmp_path):
    (tmp_path / SETTINGS).write_text(json.dumps(settings))
    assert read_sequence_length(JsonFiles(tmp_path), 512) == length


def test_an_invalid_length_in_old_files_is_refused(tmp_path):
    (tmp_path / SETTINGS).write_text('{"max_len": "long"}')
    with pytest.raises(PresetError, match=rf"{SETTINGS}: `max_len` must be a positive number, got"):
        read_sequence_length(JsonFiles(tmp_path), 512)
