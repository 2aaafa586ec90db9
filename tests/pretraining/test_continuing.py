"""Pre-training that begins with the weights of a preset."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import lmzoo
from lmzoo.pretraining import Recipe, encoders, pretrain
from lmzoo.pretraining.encoders import build_encoder_backbone
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from lmzoo.training import FineTuningRecipe
from lmzoo_cli.main import app
from tests.pretraining.conftest import LINES, TINY, assert_same_weights
from tests.tasks.interruptions import Interrupted, Spy

pytestmark = pytest.mark.usefixtures("eager")
OWN = [[line.replace("ship", "boat") for line in LINES[i % 4 :]] for i in range(60)]


def presets(folder):
    """Save a preset with both heads of BERT's pre-training, and one with the head of a masked language model."""
    paths = {}
    for kind in (lmzoo.models.Pretrainer, lmzoo.models.MaskedLM):
        task = tiny_task(kind, families()["bert"])
        task.set_weights([np.random.default_rng(3).normal(0, 0.1, weight.shape) for weight in task.weights])
        task.backbone.fine_tuning = {"classification": FineTuningRecipe(7e-4, epochs=5)}
        task.save_to_preset(folder / kind.__name__)
        paths[kind.__name__] = folder / kind.__name__
    return paths


@pytest.mark.quick_cases("MaskedLM-nsp-nsp-missing_heads3")
@pytest.mark.parametrize(
    ("preset", "objective", "loaded_objective", "missing_heads"),
    [
        ("Pretrainer", "auto", "nsp", set()),
        ("Pretrainer", "none", None, set()),
        ("MaskedLM", "auto", None, set()),
        ("MaskedLM", "nsp", "nsp", {"sentence_head"}),
    ],
)
def test_training_begins_with_all_stored_weights(tmp_path, preset, objective, loaded_objective, missing_heads):
    stored = presets(tmp_path)[preset]
    recipe = Recipe.from_preset(stored, objective=objective, mask_probability=0.3, remat=True)
    model = encoders._load_model(str(stored), recipe)
    assert (model.objective, model.masking, model.backbone.config.dropout) == (loaded_objective, recipe.masking, 0.0)
    assert model.backbone.remat
    original = getattr(lmzoo.models, preset).from_preset(stored)
    stored_weights = {weight.path.removeprefix(f"{original.name}/"): np.asarray(weight) for weight in original.weights}
    missing = set()
    for weight in model.weights:
        if (path := weight.path.removeprefix(f"{model.name}/")) in stored_weights:
            np.testing.assert_array_equal(weight, stored_weights[path])
        else:
            missing.add(path.split("/")[0])
    assert missing == missing_heads


def test_training_begins_with_an_untied_head(tmp_path):
    stored = tiny_task(lmzoo.models.MaskedLM, families()["bert"], tie_embeddings=False)
    stored.save_to_preset(tmp_path / "untied")
    model = encoders._load_model(str(tmp_path / "untied"), Recipe.from_preset(tmp_path / "untied"))
    assert not model.tie_embeddings
    assert_same_weights(model.head, stored.head)


@pytest.mark.slow
def test_a_preset_is_trained_on_other_text(tmp_path):
    """Its vocabulary and recipes for fine-tuning do not change; the card says where training began."""
    stored = presets(tmp_path)["MaskedLM"]
    recipe = Recipe.from_preset(stored, tokens=300, batch_size=5, positions=11)
    assert (recipe.family, recipe.size, recipe.init) == ("bert", "2x35", str(stored))
    assert (
        build_encoder_backbone(recipe, 1).config.num_heads == lmzoo.models.Backbone.from_preset(stored).config.num_heads
    )
    with pytest.raises(Interrupted):
        pretrain(OWN, tmp_path / "own", recipe, callbacks=[Spy(2)], verbose=False)
    changed = lmzoo.models.MaskedLM.from_preset(stored)
    changed.set_weights([np.asarray(weight) + 1 for weight in changed.weights])
    original = stored.rename(tmp_path / "original")
    changed.save_to_preset(stored)
    with pytest.raises(ValueError, match=r"another `init` \(preset .*, sha256 .*; now preset"):
        pretrain(OWN, tmp_path / "own", recipe, verbose=False)
    changed = stored.rename(tmp_path / "changed")
    original.rename(stored)
    pretrain(OWN, tmp_path / "own", recipe, verbose=False)
    card = (tmp_path / "own/README.md").read_text("utf-8")
    assert f"tokens, after the weights of {stored}." in card
    assert f"| init | {stored} |" in card
    before, after = (lmzoo.models.MaskedLM.from_preset(folder) for folder in (stored, tmp_path / "own"))
    assert before.preprocessor.tokenizer.vocabulary == after.preprocessor.tokenizer.vocabulary
    assert after.backbone.fine_tuning == {"classification": FineTuningRecipe(7e-4, epochs=5)}
    assert after.backbone.config.max_sequence_length == before.backbone.config.max_sequence_length
    changes = [np.abs(np.subtract(a, b)).max() for a, b in zip(after.weights, before.weights, strict=True)]
    assert 0 < max(changes) < 0.1


@pytest.mark.slow
def test_settings_that_contradict_the_preset_are_refused(tmp_path):
    stored = presets(tmp_path)["MaskedLM"]
    config = lmzoo.models.Backbone.from_preset(stored).config
    for settings, message in (
        ({"family": "roberta"}, "`family` must be 'bert', as in the preset .*MaskedLM, got 'roberta'"),
        ({"size": "nano"}, "`size` must be '2x35'"),
        ({"vocabulary_size": 9}, f"`vocabulary_size` must be {config.vocabulary_size}"),
        ({"positions": 512}, f"`positions` must be {config.max_sequence_length}"),
    ):
        with pytest.raises(ValueError, match=message):
            Recipe.from_preset(stored, **settings)
    with pytest.raises(ValueError, match="`family` must be 'bert'"):
        Recipe("albert", init=str(stored))
    with pytest.raises(ValueError, match=r"elmo_nano_en is of the family elmo, .* `lmzoo\.models\.BidirectionalLM"):
        Recipe.from_preset("elmo_nano_en")
    with pytest.raises(ValueError, match="Unknown preset 'bert_nan'"):
        Recipe.from_preset("bert_nan")
    assert Recipe.from_preset("bert_nano_en_uncased@1").size == "nano"
    assert Recipe.from_preset("bert_nano_en_uncased").size == "6x256"


@pytest.mark.slow
def test_the_command_line_reads_the_preset(tmp_path, monkeypatch):
    stored = presets(tmp_path)["MaskedLM"]
    recipes = []
    monkeypatch.setattr(
        "lmzoo.pretraining.pretrain", lambda corpus, output, recipe, *_, **__: recipes.append(recipe) or {}
    )
    command = ["pretrain", "texts/", "-o", str(tmp_path / "model"), "--tokens", "7", "--init", str(stored)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert recipes == [Recipe.from_preset(stored, tokens=7)]
    assert json.loads(json.dumps(dataclasses.asdict(recipes[0])))["init"] == str(stored)
    result = CliRunner().invoke(app, [*command, "--size", "mini"])
    assert "`size` must be '2x35'" in result.stderr
    assert result.stderr.endswith(" Option: --size.\n")


@pytest.mark.slow
def test_paths_may_begin_with_a_tilde(text, tmp_path, monkeypatch):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(elsewhere)
    pretrain(text, "~/tiny", Recipe(**TINY), verbose=False, states="~/states")
    assert {path.name for path in home.iterdir() if not path.name.startswith(".")} == {"tiny", "tiny.work", "states"}
    assert not list(elsewhere.iterdir())
