"""`.keras` files: the optimizer, frozen layers, settings, and errors; the conformance checks resume from them."""

from __future__ import annotations

import json
import tempfile

import keras
import numpy as np
import pytest

from lmzoo.models import MaskedLM, Task, TextClassifier, TextEmbedder
from lmzoo.text import Masking
from lmzoo.training import AdamW


@pytest.fixture(scope="module")
def trained(tiny):
    """Return a classifier in the middle of its training, and its data."""
    texts, labels = tiny.data()
    names = [("bad", "good")[label] for label in labels]
    task = tiny.classifier(labels=["bad", "good"])
    task.fit(texts, names, batch_size=8, verbose=0)
    return task, texts, names


@pytest.fixture
def file(trained, tmp_path):
    path = tmp_path / "work" / "task.keras"
    path.parent.mkdir()
    trained[0].save(path)
    return path


@pytest.mark.slow
def test_task_load_restores_the_task_and_checks_its_class(trained, file, tmp_path, monkeypatch):
    task, texts, _ = trained
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    loaded = type(task).load(file)
    assert type(loaded) is type(task)
    assert loaded.classify(texts) == task.classify(texts)
    for a, b in zip(loaded.optimizer.variables, task.optimizer.variables, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b))
    assert not Task.load(str(file), compile=False).compiled
    with pytest.raises(ValueError, match=r"task.keras holds a TextClassifier, not a MaskedLM\."):
        MaskedLM.load(file)
    assert list(folder.iterdir()) == []


def test_a_custom_optimizer_loss_and_metrics_are_restored(tiny, tmp_path):
    texts, labels = tiny.data(8)
    task = tiny.classifier(
        rate=0.01,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, name="mine"),
        metrics=["accuracy"],
        weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="nll")],
    )
    task.fit(texts, labels, verbose=0)
    task.save(tmp_path / "task.keras")
    loaded = keras.saving.load_model(tmp_path / "task.keras")
    assert isinstance(loaded.optimizer, keras.optimizers.Adam)
    expected, scores = (model.evaluate(texts, labels, verbose=0, return_dict=True) for model in (task, loaded))
    assert expected.keys() == {"loss", "accuracy", "nll"}
    assert scores == pytest.approx(expected)
    np.testing.assert_allclose(expected["loss"], expected["nll"], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", ["backbone", "embeddings"])
def test_frozen_layers_stay_frozen(tiny, save_and_load, frozen):
    task = tiny.classifier()
    layer = task.backbone if frozen == "backbone" else task.backbone.embeddings
    layer.trainable = False
    task.compile()
    expected = [v.path for v in task.trainable_variables]
    assert 0 < len(expected) < len(tiny.classifier().trainable_variables)
    for loaded in save_and_load(task):
        assert [v.path for v in loaded.trainable_variables] == expected
        assert loaded.backbone.get_config() == task.backbone.get_config()


def test_settings_may_be_numbers_of_numpy(tiny):
    """Such as rates from `np.linspace`, which JSON lacks; the error would come after the training."""
    settings = {"dropout": np.float32(0.25), "windows": np.int64(3), "stride": np.int64(5)}
    task = TextClassifier(tiny.backbone(), num_classes=3, **settings)
    config = json.loads(json.dumps(task.get_config()))
    assert {name: config[name] for name in settings} == {"dropout": 0.25, "windows": 3, "stride": 5}
    embedder = TextEmbedder(task.backbone, matryoshka_widths=[np.int64(3)], temperature=np.float32(0.5))
    assert json.loads(json.dumps(embedder.get_config()))["matryoshka_widths"] == [3]
    masked_lm = MaskedLM(tiny.backbone(dropout=np.float32(0.25)), masking=Masking(np.float32(0.5)))
    assert json.loads(json.dumps(masked_lm.get_config()))["masking"]["probability"] == 0.5
    assert json.loads(json.dumps(AdamW(weight_decay=np.float32(0.5)).get_config()))["weight_decay"] == 0.5


def test_errors_name_an_unwritable_path(tiny, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", _[0])

    task = tiny.classifier()
    monkeypatch.setattr("os.mkdir", refuse)
    with pytest.raises(PermissionError, match=f"'{tmp_path / 'preset'}'"):
        task.save_to_preset(tmp_path / "preset")


def test_tasks_without_a_preprocessor_are_saved(tiny, tmp_path):
    task, features = TextClassifier(tiny.backbone(), num_classes=3), tiny.preprocessor()(tiny.texts(5))
    task.save(tmp_path / "task.keras")
    loaded = keras.saving.load_model(tmp_path / "task.keras")
    assert loaded.preprocessor is None
    np.testing.assert_array_equal(loaded.predict(features, verbose=0), task.predict(features, verbose=0))
    with pytest.raises(ValueError, match="has no preprocessor"):
        loaded.predict(["good"])


@pytest.mark.slow
@pytest.mark.compiled
def test_a_task_loaded_without_compiling_is_saved_again(trained, file, tmp_path):
    loaded = keras.saving.load_model(file, compile=False)
    loaded.save(tmp_path / "again.keras")
    clone = keras.saving.load_model(tmp_path / "again.keras")
    assert not clone.compiled
    for actual, expected in zip(clone.get_weights(), trained[0].get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(clone.predict(trained[1], verbose=0), loaded.predict(trained[1], verbose=0))


def test_urls_are_refused(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is a URL"):
        trained[0].save("gs://bucket/task.keras")
    with pytest.raises(ValueError, match="is a URL"):
        trained[0].save_to_preset("hf://org/name")
    assert not list(tmp_path.iterdir())
