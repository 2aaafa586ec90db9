"""Damaged models, full disks and paths that cannot be written: the error names the file and says what to do."""

from __future__ import annotations

import errno
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from lmzoo.checkpoints.formats.hdf5 import write_hdf5
from lmzoo.files.atomic import atomic_directory, atomic_file
from lmzoo.models import Backbone, Task, TextClassifier
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_task

pytestmark = pytest.mark.usefixtures("eager")

BERT, ELMO = families()["bert"], families()["elmo"]


@pytest.fixture(scope="module")
def classifier() -> TextClassifier:
    return tiny_task(TextClassifier, BERT)


def damage(files: dict[str, bytes]) -> Iterator[tuple[str, bytes | None, str]]:
    """Iterate over damages of a model's files: the name of a file, its new content (None to remove it), a message."""
    for name, data in files.items():
        if name not in ("metadata.json", "tokenizer.json"):  # loading does not need these
            yield name, None, name.rpartition("/")[2]
        if name.endswith(".h5"):
            yield name, data[: len(data) // 2], "."
            yield name, b"", "."
        if name.endswith(".txt"):
            yield name, b"\xff\xfe" + data, r"\.txt is not UTF-8: its byte 0 is 0xff"
        if name in ("config.json", "task.json", "preprocessor.json"):
            for content in (data[:50], b"[1]", b"{}", b"\xff\xfe\x00", b'{"registered_name": [], "config": []}'):
                yield name, content, "."


@pytest.fixture(scope="module")
def saved(classifier: TextClassifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the classifier as `it.keras` and as the preset `it`."""
    folder = tmp_path_factory.mktemp("saved")
    classifier.save(folder / "it.keras")
    classifier.save_to_preset(folder / "it")
    (folder / "it" / "manifest.json").unlink()  # its checksums would reveal every damage
    return folder


def test_errors_about_keras_files_name_the_file(saved: Path, tmp_path: Path) -> None:
    """`tests/faults/test_malicious_models.py` damages the archive itself."""
    path = tmp_path / "it.keras"
    with zipfile.ZipFile(saved / "it.keras") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    for damaged_name, content, _ in damage(files):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in {**files, damaged_name: content}.items():
                if data is not None:
                    archive.writestr(name, data)
        with pytest.raises(ValueError, match=r"it\.keras") as caught:
            Task.load(path)
        assert "object has no" not in str(caught.value), damaged_name
        assert "not subscriptable" not in str(caught.value), damaged_name
    with pytest.raises(ValueError, match=r"is a directory, not a `\.keras` file"):
        Task.load(tmp_path)
    for value in (None, 5, b"x", ["a"]):
        with pytest.raises(TypeError, match="Expected the path of a file"):
            Task.load(value)


def test_errors_about_presets_name_the_directory(saved: Path, tmp_path: Path) -> None:
    files = {str(p.relative_to(saved / "it")): p.read_bytes() for p in (saved / "it").rglob("*") if p.is_file()}
    for number, (name, content, message) in enumerate(damage(files)):
        folder = tmp_path / f"preset{number}"
        shutil.copytree(saved / "it", folder)
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
        elif name == "task.json":
            continue  # what is left is a backbone's preset
        with pytest.raises(ValueError, match=message) as caught:
            TextClassifier.from_preset(folder)
        assert str(folder) in str(caught.value), name
    config = json.loads(files["config.json"])
    config["config"]["max_sequence_length"] = 7
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"model\.weights\.h5 holds a weight of shape \(\d+, 35\), .* shape \(7, 35\)"):
        Backbone.from_preset(folder)
    for arguments, message in (
        ({"labels": 5}, "`labels` must be a list"),
        ({"sequence_length": True}, "`sequence_length` must"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            TextClassifier.from_preset(saved / "it", **arguments)


def test_a_full_disk_is_named_with_advice(
    classifier: TextClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    advice = r"what was there before has not changed. Free some room, or choose another folder: '.*{}'$"
    with pytest.raises(OSError, match=advice.format("it")), atomic_file(tmp_path / "it"):
        fail()
    with pytest.raises(OSError, match=advice.format("it")), atomic_directory(tmp_path / "it", marker="", owns=()):
        fail()
    # HDF5 ends the process if the disk is full when a file is closed, so lmzoo reserves the room first.
    monkeypatch.setattr(os, "posix_fallocate", fail, raising=False)
    with pytest.raises(OSError, match=advice.format("it")):
        classifier.save_to_preset(tmp_path / "it")
    with pytest.raises(OSError, match=advice.format("it.h5")):
        write_hdf5(tmp_path / "it.h5", [("a", np.ones(3))])
    monkeypatch.setattr(keras.Model, "save", fail)
    with pytest.raises(OSError, match=advice.format("it.keras")):
        classifier.save(tmp_path / "it.keras")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_of_a_backbone_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: keras.Model, path: Path) -> None:
        Path(path).write_text("half")
        raise OSError(errno.ENOSPC, "full")

    (tmp_path / "it.keras").write_text("old")
    monkeypatch.setattr(keras.Model, "save", fail)
    with pytest.raises(OSError, match=r"choose another folder: '.*/it\.keras'$"):
        tiny_backbone(BERT).save(tmp_path / "it.keras")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_more_room_is_reserved_than_the_weights_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda file, start, size: sizes.append(size), raising=False)
    for family in (BERT, ELMO):
        sizes.clear()
        tiny_backbone(family).save_to_preset(tmp_path / family.name)
        assert sizes[0] > (tmp_path / family.name / "model.weights.h5").stat().st_size


def test_paths_that_cannot_be_written_are_named(classifier: TextClassifier, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for method in (classifier.save, classifier.save_to_preset, classifier.export):
        for value in (None, 5, b"x.keras", ["a"]):
            with pytest.raises(TypeError, match="Expected the path of a file or directory"):
                method(value)
        name = "it.keras" if method == classifier.save else "it"
        with pytest.raises(OSError, match="file is not a directory, or lies in a file"):
            method(file / name)
    (tmp_path / "it.keras").mkdir()
    with pytest.raises(IsADirectoryError, match=r"Is a directory: '.*/it\.keras'$"):
        classifier.save(tmp_path / "it.keras")
