"""`lmzoo fit` takes the preset's recipe, says so, and lets options override it."""

from __future__ import annotations

import json

import keras
import pytest
from typer.testing import CliRunner

from lmzoo.families.bert import FAMILY
from lmzoo.models import MaskedLM, Task, TextClassifier
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_texts
from lmzoo.training import FineTuningRecipe
from lmzoo_cli.main import app

RECIPE = FineTuningRecipe(0.004, epochs=2, batch_size=3, pooling="mean")


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """Runs `lmzoo fit` on a tiny preset with or without recipes; returns its output and what `Task.fit` got."""
    lines = [{"text": text, "label": "pos" if "good" in text else "neg"} for text in tiny_texts(13)]
    (tmp_path / "it.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    calls = []

    def instead(task, x, y, batch_size, epochs, *arguments, **options):
        calls.append((batch_size, epochs, float(task.optimizer.learning_rate), task.pooling))
        return keras.callbacks.History()

    monkeypatch.setattr(Task, "fit", instead)
    monkeypatch.setattr(TextClassifier, "save", lambda task, path: None)
    monkeypatch.setattr(keras.callbacks.History, "history", {}, raising=False)

    def run(*options, recipes=None):
        backbone = tiny_backbone(FAMILY, fine_tuning=recipes)
        MaskedLM(backbone, tiny_preprocessor(FAMILY)).save_to_preset(tmp_path / "preset")
        arguments = ["fit", tmp_path / "it.jsonl", "--task", "classifier", "--preset", tmp_path / "preset"]
        result = CliRunner().invoke(app, [str(a) for a in (*arguments, "-o", tmp_path / "it.keras", *options)])
        assert result.exit_code == 0, result.output
        return " ".join(result.stderr.split()), calls[-1], result.output.splitlines()[0]

    return run


def test_the_recipe_of_the_preset(fit):
    said, (batch_size, epochs, rate, pooling), first = fit(recipes={"classification": RECIPE})
    assert (batch_size, epochs, pooling) == (3, 2, "mean")
    assert rate == pytest.approx(0.004)
    assert "preset: peak learning rate 0.004, 2 epochs, batches of 3, pooling mean Wrote " in said
    assert first.startswith("Recipe of ")
    assert first.endswith("pooling mean")  # all in one line


def test_options_are_taken_and_named(fit):
    options = ["--epochs", 1, "--learning-rate", 0.125, "--pooling", "first", "--batch-size", 4]
    said, found, _ = fit(*options, recipes={"classification": RECIPE})
    assert found == (4, 1, 0.125, "first")
    assert (
        "peak learning rate 0.125, 1 epoch, batches of 4, pooling first; set by options: learning rate, epochs" in said
    )


def test_the_default_recipe(fit):
    said, (batch_size, epochs, rate, pooling), _ = fit()
    width = FAMILY.tiny.hidden_dim
    assert (batch_size, epochs, pooling) == (32, 3, "first")
    assert rate == pytest.approx(5e-5 * 768 / width)
    assert "Default recipe: peak learning rate " in said
