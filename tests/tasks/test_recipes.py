"""Fine-tuning recipes of presets: the default learning rate and pooling of a task."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.models import Backbone, BertBackbone, MaskedLM, TextClassifier, TextEmbedder, TextRegressor
from lmzoo.training import AdamW, FineTuningRecipe

RECIPES = {
    "classification": FineTuningRecipe(0.003, epochs=7, batch_size=5, pooling="mean"),
    "embedding": FineTuningRecipe(0.002, pooling="max"),
    "masked_lm": FineTuningRecipe(0.001, pooling="mean"),  # a head that does not pool
}


def get_rate(task):
    return float(task.optimizer.learning_rate)


@pytest.fixture(scope="module")
def preset(tiny, tmp_path_factory):
    """Save a backbone with recipes, and return the path of its preset."""
    backbone = tiny.backbone()
    path = tmp_path_factory.mktemp("recipes") / "preset"
    backbone.fine_tuning = dict(RECIPES)
    backbone.save_to_preset(path)
    return path


@pytest.fixture
def build(preset, tiny):
    return lambda cls, **arguments: cls.from_preset(preset, preprocessor=tiny.preprocessor(), **arguments)


def test_a_preset_decides_on_rate_and_pooling(build):
    task = build(TextClassifier, num_classes=2)
    assert task.pooling == "mean"
    assert get_rate(task) == pytest.approx(0.003)
    assert task.recipe == RECIPES["classification"]
    assert build(TextEmbedder).pooling == "max"
    with pytest.warns(UserWarning, match="holds no head"):
        assert get_rate(build(MaskedLM)) == pytest.approx(0.001)


def test_heads_without_a_recipe_get_the_default_one(build, tiny):
    task = build(TextRegressor)
    assert task.pooling == "first"
    default = FineTuningRecipe(5e-5 * 768 / 21)
    assert task.recipe == tiny.classifier().recipe == default
    assert (default.epochs, default.batch_size) == (3, 32)
    assert get_rate(task) == pytest.approx(default.learning_rate)


def test_arguments_override_the_recipe(build):
    task = build(TextClassifier, num_classes=2, pooling="first")
    task.compile(AdamW(0.5))
    assert (task.pooling, get_rate(task)) == ("first", 0.5)
    task.compile()
    assert get_rate(task) == pytest.approx(0.003)


@pytest.mark.slow
def test_a_saved_task_keeps_its_settings_and_the_recipes(build, tmp_path):
    task = build(TextClassifier, num_classes=2, pooling="first")
    task.compile(AdamW(0.5))
    task.save(tmp_path / "task.keras")
    task.save_to_preset(tmp_path / "task")
    reloaded = keras.saving.load_model(tmp_path / "task.keras")
    assert (reloaded.pooling, get_rate(reloaded)) == ("first", 0.5)
    assert reloaded.backbone.fine_tuning == RECIPES
    assert TextClassifier.from_preset(tmp_path / "task").pooling == "first"
    with pytest.warns(UserWarning, match="starts from scratch"):
        assert TextClassifier.from_preset(tmp_path / "task", num_classes=3).pooling == "first"
    with pytest.warns(UserWarning, match="the head of a TextClassifier"):
        assert TextEmbedder.from_preset(tmp_path / "task").pooling == "max"
    assert Backbone.from_preset(tmp_path / "task").fine_tuning == RECIPES


def test_recipes_change_neither_weights_nor_configuration(preset, tiny):
    loaded, original = Backbone.from_preset(preset), tiny.backbone()
    for actual, expected in zip(loaded.weights, original.weights, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert "fine_tuning" not in original.get_config()
    assert loaded.config == original.config


@pytest.mark.parametrize(
    ("recipes", "message"),
    [
        ([1], "a dict from kinds of heads"),
        ({"classification": 1e-3}, "for 'classification' in `fine_tuning` must be a dict"),
        ({"classification": {"epochs": 3}}, "with `learning_rate`"),
        (
            {"classification": {"learning_rate": 1e-3, "warmup": 1}},
            "at most learning_rate, epochs, batch_size, pooling",
        ),
        ({"classification": {"learning_rate": float("nan")}}, "`learning_rate` of a recipe must be a number"),
        ({"classification": {"learning_rate": "1e-3"}}, "`learning_rate` of a recipe must be a number"),
        ({"classification": {"learning_rate": 1e-3, "epochs": 0}}, "`epochs` of a recipe must be an integer"),
        ({"classification": {"learning_rate": 1e-3, "batch_size": 1.5}}, "`batch_size` of a recipe must be an integer"),
        ({"classification": {"learning_rate": 1e-3, "pooling": 1}}, "`pooling` of a recipe must be text"),
    ],
)
def test_errors_of_recipes(tiny, recipes, message):
    config = tiny.backbone().get_config()
    with pytest.raises(ValueError, match=message):
        BertBackbone.from_config({**config, "fine_tuning": recipes})
