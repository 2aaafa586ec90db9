"""`model_max_length` of tokenizer_config.json: the longest sequence that a checkpoint's tokenizer makes."""

from __future__ import annotations

import json
import shutil

import pytest

from lmzoo.models import TextClassifier
from lmzoo.presets import PresetError
from lmzoo.presets.converting import convert, save_checkpoint
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from lmzoo.text import TextWarning

SETTINGS = "tokenizer_config.json"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Hugging Face's files of a model of 67 positions."""
    directory = tmp_path_factory.mktemp("theirs")
    save_checkpoint(tiny_task(TextClassifier, families()["bert"]), directory, to="hf")
    return directory


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "theirs")


def say(folder, length) -> None:
    settings = json.loads((folder / SETTINGS).read_text())
    (folder / SETTINGS).write_text(json.dumps({**settings, "model_max_length": length}))


@pytest.mark.parametrize(
    ("length", "expected"), [(23, 23), (67, 67), (512, 67), (10**30, 67), (1e30, 67), (29.0, 29), (None, 67)]
)
def test_it_limits_sequences(length, expected, folder):
    say(folder, length)
    task = TextClassifier.from_preset(folder)
    assert task.preprocessor.sequence_length == expected
    assert isinstance(task.preprocessor.sequence_length, int)
    with pytest.warns(TextWarning, match=f"truncated to {expected} tokens"):
        assert max(task.encode_inputs(["a " * 400]).lengths) == expected


def test_it_is_written_back(folder, tmp_path):
    say(folder, 23)
    convert(folder, tmp_path / "ours_again")
    convert(tmp_path / "ours_again", tmp_path / "again", to="hf")
    assert json.loads((tmp_path / "again" / SETTINGS).read_text())["model_max_length"] == 23
    assert TextClassifier.from_preset(tmp_path / "again", sequence_length=61).preprocessor.sequence_length == 61


@pytest.mark.parametrize("length", [0, -1, "512", True, [512], float("nan")])
def test_what_is_no_length(length, folder):
    say(folder, length)
    with pytest.raises(PresetError, match=rf"{SETTINGS}: `model_max_length` must be a positive number, got"):
        TextClassifier.from_preset(folder)
