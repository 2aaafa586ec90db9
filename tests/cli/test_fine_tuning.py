"""`lmzoo fit`: the preset's recipe, which options override, and classes that held-out examples lack."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import keras
import pytest

from lmzoo.families.bert import FAMILY
from lmzoo.families.marian import FAMILY as MARIAN
from lmzoo.models import MaskedLM, Seq2SeqLM, Task, TextClassifier
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task, tiny_texts
from lmzoo.training import FineTuningRecipe
from lmzoo_cli.fine_tuning import FitExamples, read_examples, train
from lmzoo_cli.options import Columns, FitOptions
from lmzoo_cli.task_kinds import get_kind
from tests.cli.commands import run as run_lmzoo

RECIPE = FineTuningRecipe(0.004, epochs=2, batch_size=3, pooling="mean")


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """Return a function that runs `lmzoo fit`: its stderr, the settings of `Task.fit` and its first line of output."""
    lines = [{"text": text, "label": "pos" if "good" in text else "neg"} for text in tiny_texts(13)]
    (tmp_path / "reviews.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    calls = []

    def record_settings(task, x, y, batch_size, epochs, *arguments, **options):
        calls.append((batch_size, epochs, float(task.optimizer.learning_rate), task.pooling))
        return keras.callbacks.History()

    monkeypatch.setattr(Task, "fit", record_settings)
    monkeypatch.setattr(TextClassifier, "save", lambda task, path: None)
    monkeypatch.setattr(keras.callbacks.History, "history", {}, raising=False)

    def run(*options, recipes=None):
        backbone = tiny_backbone(FAMILY, fine_tuning=recipes)
        MaskedLM(backbone, tiny_preprocessor(FAMILY)).save_to_preset(tmp_path / "preset")
        arguments = ["fit", tmp_path / "reviews.jsonl", "--task", "classifier", "--preset", tmp_path / "preset"]
        result = run_lmzoo(*arguments, "-o", tmp_path / "classifier.keras", *options)
        return " ".join(result.stderr.split()), calls[-1], result.output.splitlines()[0]

    return run


def test_the_recipe_of_the_preset_is_used(fit):
    stderr, (batch_size, epochs, rate, pooling), first_line = fit(recipes={"classification": RECIPE})
    assert (batch_size, epochs, pooling) == (3, 2, "mean")
    assert rate == pytest.approx(0.004)
    assert "preset: peak learning rate 0.004, 2 epochs, batches of 3, pooling mean Wrote " in stderr
    assert first_line.startswith("Recipe of ")
    assert first_line.endswith("pooling mean")  # the whole recipe is on one line


def test_options_override_the_recipe_and_are_named(fit):
    options = ["--epochs", 1, "--learning-rate", 0.125, "--pooling", "first", "--batch-size", 4]
    stderr, settings, _ = fit(*options, recipes={"classification": RECIPE})
    assert settings == (4, 1, 0.125, "first")
    assert (
        "peak learning rate 0.125, 1 epoch, batches of 4, pooling first; set by options: learning rate, epochs"
        in stderr
    )


def test_a_learning_rate_keeps_the_other_settings_of_the_optimizer(monkeypatch):
    task = tiny_task(Seq2SeqLM, MARIAN)
    monkeypatch.setattr(Task, "fit", lambda task, *_, **__: SimpleNamespace(history={}))
    options = FitOptions(data=Path(), task="translation", preset="", output=Path(), learning_rate=0.125)
    train(task, options, FitExamples(["a"], None, None, None, [], None), replace(task.recipe, learning_rate=0.125))
    expected = {"learning_rate": 0.125, "beta_2": 0.98, "epsilon": 1e-9, "global_clipnorm": 1.0, "schedule": "linear"}
    assert {name: task.optimizer.get_config()[name] for name in expected} == expected


def test_presets_without_a_recipe_use_the_default(fit):
    stderr, (batch_size, epochs, rate, pooling), _ = fit()
    width = FAMILY.tiny.hidden_dim
    assert (batch_size, epochs, pooling) == (32, 3, "first")
    assert rate == pytest.approx(5e-5 * 768 / width)
    assert "Default recipe: peak learning rate " in stderr


@pytest.mark.parametrize(
    ("labels", "warning"),
    [
        ("aaaaaaabbb", "The validation examples lack the class 'b'. Raise --validation-split, or pass --validation."),
        ("aaaaaaaabb", ""),  # four tenths of two are not even one
    ],
)
def test_classes_that_the_held_out_examples_lack_are_named(tmp_path, labels, warning):
    (tmp_path / "data.csv").write_text("text,label\n" + "".join(f"x,{label}\n" for label in labels))
    options = FitOptions(
        data=tmp_path / "data.csv", task="classifier", preset="", output=tmp_path / "a.keras", validation_split=0.4,
        seed=10,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        examples = read_examples(options, Columns(), get_kind("classifier").reading)
    assert "b" not in examples.counts[1]
    assert [str(each.message) for each in caught] == [warning] * bool(warning)


@pytest.mark.parametrize(
    ("kind", "names"),
    [("classifier", ["B-1", "B-2", "E-2"]), ("token-classifier", ["B-1", "B-2", "E-1", "E-2"])],
)
def test_only_taggers_have_classes_for_all_span_marks(tmp_path, kind, names):
    """Labels such as visa types may look like marks of spans."""
    labels = ["B-1", "B-2", "E-2"]
    (tmp_path / "data.csv").write_text("text,label\n" + "".join(f"x,{label}\n" for label in labels))
    (tmp_path / "data.conll").write_text("".join(f"x {label}\n" for label in labels))
    data = tmp_path / ("data.csv" if kind == "classifier" else "data.conll")
    options = FitOptions(data=data, task=kind, preset="", output=tmp_path / "a.keras")
    assert read_examples(options, Columns(), get_kind(kind).reading).class_names == names
