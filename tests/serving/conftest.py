"""Artifacts that are exported once for the tests of this directory, and servers of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import keras
import pytest

from lmzoo.models import MaskedLM, MultipleChoice, TextClassifier
from lmzoo.serving.model_versions import ModelVersions
from lmzoo.serving.rest_api import RestApi
from tests.serving.artifacts import Exported, export_with_cli, times_of
from tests.serving.bare import BareProcess
from tests.serving.varied import classifier


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of these exports as slow on other backends, where each export starts a process with TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        for item in items:
            if "reviews" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Return two versions of a classifier, 9 from Python and 10 from the command line, moved and then read-only."""
    models: dict[int, TextClassifier] = {
        9: classifier(labels=["no", "yes"]),
        10: classifier(labels=["no", "may\nbe", "yes"]),
    }
    origin = tmp_path_factory.mktemp("written-here") / "reviews"
    models[9].export(origin / "9", verbose=False)
    output = export_with_cli(models[10], origin)
    folder = Path(shutil.move(origin, tmp_path_factory.mktemp("served") / "reviews"))
    for path in folder.rglob("*"):  # root may still write to them
        path.chmod(0o555 if path.is_dir() else 0o444)
    for model in models.values():
        model.run_eagerly = True
    return Exported(folder, models, origin, output, times_of(folder))


@pytest.fixture(scope="session")
def fill(reviews: Exported, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Return a task that fills masks, exported by the command line as the first version."""
    model = MaskedLM(reviews.models[9].backbone, reviews.models[9].preprocessor)
    folder = tmp_path_factory.mktemp("tasks") / "fill"
    output = export_with_cli(model, folder)
    model.run_eagerly = True
    return Exported(folder, {1: model}, folder, output)


@pytest.fixture(scope="session")
def choose(reviews: Exported, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Return a task that chooses, exported over a classifier in a directory with a user's notes."""
    model = MultipleChoice(reviews.models[9].backbone, reviews.models[9].preprocessor)
    folder = tmp_path_factory.mktemp("tasks") / "choose"
    shutil.copytree(reviews.path(10), folder / "1")
    for path in (folder / "1", *(folder / "1").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (folder / "1" / "notes.txt").write_text("mine")
    model.export(folder / "1", verbose=False)
    model.run_eagerly = True
    return Exported(folder, {1: model}, folder)


@pytest.fixture(scope="session")
def artifacts(reviews: Exported, fill: Exported, choose: Exported) -> list[Path]:
    """Return folders of tasks with different inputs."""
    return [reviews.path(10), fill.path(1), choose.path(1)]


@pytest.fixture(scope="session")
def api(reviews: Exported) -> RestApi:
    """Return an API of the reviews."""
    return RestApi(reviews.folder)


@pytest.fixture(scope="session")
def served(api: RestApi, fill: Exported, choose: Exported) -> list[ModelVersions]:
    """Return the versions of every task."""
    return [api.versions, ModelVersions(fill.folder), ModelVersions(choose.folder)]


@pytest.fixture(scope="session")
def bare() -> Iterator[BareProcess]:
    """Return a process without lmzoo."""
    with BareProcess() as process:
        yield process
