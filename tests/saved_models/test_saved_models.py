"""Models that any earlier version has saved still load and predict the same."""

from __future__ import annotations

import ast
import zipfile
from itertools import groupby
from pathlib import Path

import keras
import numpy as np
import pytest

from lmzoo import models
from lmzoo.registry.family import families

ARCHIVES = sorted(Path(__file__).parent.glob("*/*.zip"))
TOLERANCE = 1e-5  # between backends and machines


def saved_models():
    """Iterate over the models of all versions; each backbone is quick, and each task on one family."""
    models_of_versions = []
    for path in ARCHIVES:
        with zipfile.ZipFile(path) as archive:
            names = (name.removesuffix(".keras") for name in archive.namelist() if name.endswith(".keras"))
            models_of_versions += [(path.parent.name, name, path) for name in names]
    for number, ((version, name), group) in enumerate(groupby(sorted(models_of_versions), key=lambda item: item[:2])):
        paths = [path for *_, path in group]
        for path in paths:
            slow = name != "Backbone" and path is not paths[number % len(paths)]
            yield pytest.param(path, name, id=f"{version}-{path.stem}-{name}", marks=[pytest.mark.slow] * slow)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Return a function that unpacks an archive, once, and returns its directory."""
    folders = {}

    def unpack(path):
        if path not in folders:
            folders[path] = tmp_path_factory.mktemp(path.stem)
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folders[path])
        return folders[path]

    return unpack


def assert_close(actual, expected):
    for a, b in zip(keras.tree.flatten(actual), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.filterwarnings("ignore:.* hold no (<mask>|.MASK.):lmzoo.text.TextWarning")
@pytest.mark.parametrize(("archive", "name"), list(saved_models()))
def test_old_files_predict_the_same(archive, name, unpacked):
    folder = unpacked(archive)
    with np.load(folder / f"{name}.npz") as stored:
        arrays = dict(stored)
    expected = [arrays.pop(f"arr_{i}") for i in range(sum(key.startswith("arr_") for key in arrays))]
    from_file = keras.saving.load_model(folder / f"{name}.keras")
    from_preset = getattr(models, name).from_preset(folder / name)
    for model in (from_file, from_preset):
        model.run_eagerly = keras.backend.backend() == "tensorflow"  # faster for models this small
        if name == "Backbone":
            assert_close(model.predict_on_batch(arrays), expected)
        else:
            x = ast.literal_eval((folder / f"{name}.txt").read_text("utf-8"))
            assert_close(model.predict(x, verbose=0), expected)
    if name == "TextClassifier":
        assert int(from_file.optimizer.iterations) == 1


def test_every_family_and_task_is_saved():
    stored = {(path.stem, name) for path, name in (parameter.values for parameter in saved_models())}
    for family in families().values():
        for name in models.__all__:
            task = getattr(models, name)
            if isinstance(task, type) and issubclass(task, models.Task) and task is not models.Task:
                assert not task.supports(family) or (family.name, name) in stored, (
                    "run tests/saved_models/save.py, which saves what is missing"
                )
