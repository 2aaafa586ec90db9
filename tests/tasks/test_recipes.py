"""Where the defaults of fine-tuning come from: the recipes of the preset, unless the user says otherwise."""

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


def rate(task):
    return float(task.optimizer.learning_rate)


@pytest.fixture(scope="module")
def preset(tiny, tmp_path_factory):
    """A preset with recipes, and no head."""
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
    assert rate(task) == pytest.approx(0.003)
    assert task.recipe == RECIPES["classification"]
    assert build(TextEmbedder).pooling == "max"
    with pytest.warns(UserWarning, match="holds no head"):
        assert rate(build(MaskedLM)) == pytest.approx(0.001)


def test_heads_without_a_recipe_get_the_usual_one(build, tiny):
    task = build(TextRegressor)
    assert task.pooling == "first"
    usual = FineTuningRecipe(5e-5 * 768 / 21)
    assert task.recipe == tiny.classifier().recipe == usual
    assert (usual.epochs, usual.batch_size) == (3, 32)
    assert rate(task) == pytest.approx(usual.learning_rate)


def test_what_the_user_says_is_taken(build):
    task = build(TextClassifier, num_classes=2, pooling="first")
    task.compile(AdamW(0.5))
    assert (task.pooling, rate(task)) == ("first", 0.5)
    task.compile()
    assert rate(task) == pytest.approx(0.003)


@pytest.mark.slow
def test_a_saved_task_keeps_its_settings_and_the_recipes(build, tmp_path):
    task = build(TextClassifier, num_classes=2, pooling="first")
    task.compile(AdamW(0.5))
    task.save(tmp_path / "it.keras")
    task.save_to_preset(tmp_path / "it")
    again = keras.saving.load_model(tmp_path / "it.keras")
    assert (again.pooling, rate(again)) == ("first", 0.5)
    assert again.backbone.fine_tuning == RECIPES
    assert TextClassifier.from_preset(tmp_path / "it").pooling == "first"
    with pytest.warns(UserWarning, match="starts from scratch"):
        assert TextClassifier.from_preset(tmp_path / "it", num_classes=3).pooling == "first"
    with pytest.warns(UserWarning, match="the head of a TextClassifier"):
        assert TextEmbedder.from_preset(tmp_path / "it").pooling == "max"
    assert Backbone.from_preset(tmp_path / "it").fine_tuning == RECIPES


def test_recipes_change_no_number(preset, tiny):
    loaded, original = Backbone.from_preset(preset), tiny.backbone()
    for ours, theirs in zip(loaded.weights, original.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
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
def test_what_is_not_a_recipe(tiny, recipes, message):
    config = tiny.backbone().get_config()
    with pytest.raises(ValueError, match=message):
        BertBackbone.from_config({**config, "fine_tuning": recipes})
