"""`from_preset` parses and opens each file of a preset or a checkpoint once, and leaves none open."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest

import lmzoo
from lmzoo.checkpoints.formats import safetensors
from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles
from lmzoo.models import Backbone, TextClassifier, TextEmbedder
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_task
from tests.checkpoints.sentence_folders import dense, pooling, write_folder

tensorflow = pytest.importorskip("tensorflow")
torch = pytest.importorskip("torch")

FORMATS = ["keras", "hf", "pickled", "keras_hub", "tf1", "bilm", "sentence transformers"]
# Keras reads the values of weights from a path only, after lmzoo has looked at their names and shapes.
OPENED_BY_KERAS = {"model.weights.h5": 2}


def save(format: str, folder: Path) -> Any:
    """Write a tiny model in a format and return the class that loads it."""
    if format == "sentence transformers":
        write_folder(folder, pooling(), dense(), prompts={"query": "film "})
        return TextEmbedder
    if format == "bilm":
        lmzoo.save_checkpoint(tiny_backbone(families()["elmo"]), folder, to="bilm")
        return Backbone
    cls = TextEmbedder if format == "keras_hub" else TextClassifier
    with warnings.catch_warnings(action="ignore"):  # some formats have no place for a part of the configuration
        lmzoo.save_checkpoint(tiny_task(cls, families()["bert"]), folder, to="hf" if format == "pickled" else format)
    if format == "pickled":
        tensors = SafetensorsFiles(folder)
        state = {name: torch.from_numpy(tensors.read(name)) for name in tensors.names()}
        torch.save(state, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return cls


@contextlib.contextmanager
def counted_files(folder: Path) -> Iterator[Counter[str]]:
    """Count how often each file in a directory is parsed or opened by a library, by its name."""
    counts: Counter[str] = Counter()
    texts = {path.read_text("utf-8"): path for path in folder.rglob("*.json")}
    parse = json.loads

    def count(file: str | os.PathLike[str]) -> None:
        counts[os.path.relpath(file, folder)] += 1

    def parse_json(text: Any, *args: Any, **kwargs: Any) -> Any:
        if text in texts:
            count(texts[text])
        return parse(text, *args, **kwargs)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, *args: Any, **kwargs: Any) -> Any:
            count(file)
            return function(file, *args, **kwargs)

        return call

    class CountedFile(h5py.File):
        def __init__(self, name: Any, *args: Any, **kwargs: Any) -> None:
            count(name)
            super().__init__(name, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmzoo.files.manifest._verified", {})
        patch.setattr(json, "loads", parse_json)
        patch.setattr(h5py, "File", CountedFile)
        for module, name in (
            (safetensors, "safe_open"),
            (tensorflow.compat.v1.train, "NewCheckpointReader"),
            (torch, "load"),
        ):
            patch.setattr(module, name, counted(getattr(module, name)))
        yield counts


def files_in_use(folder: Path) -> set[str]:
    """Return the names of the files in a directory that this process has open or mapped into memory."""
    links = Path("/proc/self/fd").iterdir()
    paths = [os.readlink(link) for link in links if link.is_symlink()]  # the directory's own descriptor is closed
    paths += [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return {Path(path).name for path in paths if path.startswith(f"{folder}/")}


@pytest.mark.slow_cases("keras", "keras_hub")
@pytest.mark.parametrize("format", FORMATS)
def test_each_file_is_opened_once(format, tmp_path):
    expected = OPENED_BY_KERAS if format == "keras" else {}
    for cls in dict.fromkeys((Backbone, save(format, tmp_path))):
        with counted_files(tmp_path) as counts:
            cls.from_preset(tmp_path)
        assert len(counts) > 1
        repeated = {name: count for name, count in counts.items() if count != expected.get(name, 1)}
        assert not repeated, f"{cls.__name__} opens {repeated}"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads Linux' own figures")
@pytest.mark.parametrize("format", FORMATS)
def test_no_file_stays_open(format, tmp_path):
    cls = save(format, tmp_path)
    model = cls.from_preset(tmp_path)
    assert files_in_use(tmp_path) == set()
    del model
    with pytest.raises(ValueError, match="dropout") as caught:
        cls.from_preset(tmp_path, dropout=-1.0)
    assert files_in_use(tmp_path) == set(), caught  # its traceback keeps the objects of the failed call alive
