"""Every shipped preset has a recipe for every task that can be fine-tuned on it."""

from __future__ import annotations

import pytest

from lmzoo import models
from lmzoo.files.preset_files import read_json
from lmzoo.presets import verify_manifest
from lmzoo.presets.catalog import list_presets, open_preset
from lmzoo.registry.family import families
from lmzoo.training.fine_tuning import read_recipes

TASKS = (
    models.TextClassifier,
    models.TextRegressor,
    models.MultipleChoice,
    models.TokenClassifier,
    models.QuestionAnswerer,
    models.TextEmbedder,
    models.MaskedLM,
    models.CausalLM,
)
POOLED = {"classification", "regression", "multiple_choice"}


@pytest.mark.parametrize("name", [name for name, info in list_presets().items() if info.shipped])
def test_a_preset_has_a_recipe_for_every_task(name):
    folder = open_preset(name)
    verify_manifest(folder)
    recipes = read_recipes(read_json(folder, "config.json")["config"]["fine_tuning"])
    family = families()[list_presets()[name].family]
    assert recipes.keys() == {task.head_kind for task in TASKS if task.supports(family)}
    assert {head for head, recipe in recipes.items() if recipe.pooling} >= POOLED
    assert {recipe.pooling for recipe in recipes.values()} <= {"first", "mean", None}
    assert all(1e-5 < recipe.learning_rate < 1e-2 for recipe in recipes.values())
