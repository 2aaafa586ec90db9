"""Pre-training with replaced tokens, and with fairseq's tokens."""

from __future__ import annotations

import contextlib
import math

import pytest

from lmzoo.models import MaskedLM, Pretrainer, TextClassifier
from lmzoo.presets.converting import save_checkpoint
from lmzoo.pretraining import Recipe, encoders, pretrain
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from tests.pretraining.conftest import TINY, assert_same_weights

pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "objective"), [("electra", "auto"), ("albert", "rtd")])
def test_training_continues_from_a_preset(family, objective, text, tmp_path):
    settings = {**TINY, "family": family, "objective": objective, "tokens": 4_000, "learning_rate": 0.01}
    scores = pretrain(text, tmp_path / "preset", Recipe(**settings), verbose=False, weights_dtype="float32")
    assert scores["masked_lm_loss"] < math.log(TINY["vocabulary_size"])
    assert scores["replaced_tokens_loss"] < math.log(2)
    model = Pretrainer.from_preset(tmp_path / "preset")
    assert (model.objective, model.backbone.hidden_dim, model.make_generator().backbone.hidden_dim) == ("rtd", 64, 16)
    assert TextClassifier.from_preset(tmp_path / "preset", num_classes=2).pooling == "mean"
    assert "| objective | rtd |" in (tmp_path / "preset/README.md").read_text("utf-8")
    sizes = {name: TINY[name] for name in ("sequence_length", "batch_size", "tokens")}
    recipe = Recipe.from_preset(tmp_path / "preset", objective=objective, **sizes)
    loaded = encoders._load_model(str(tmp_path / "preset"), recipe)
    assert_same_weights(loaded, model)
    next_scores = pretrain(text, tmp_path / "more", recipe, verbose=False)
    assert next_scores["loss"] < 1.1 * scores["loss"]


def test_a_preset_of_another_objective_gets_a_generator(tmp_path):
    stored = tiny_task(Pretrainer, families()["albert"])
    assert stored.objective == "sop"
    stored.save_to_preset(tmp_path / "pairs")
    with pytest.warns(UserWarning, match="is for another `objective`: .*`replaced_tokens` .*from scratch"):
        model = encoders._load_model(str(tmp_path / "pairs"), Recipe.from_preset(tmp_path / "pairs", objective="rtd"))
    assert model.objective == "rtd"
    assert_same_weights(model.backbone, stored.backbone)


@pytest.mark.slow
def test_a_generator_continues_to_fill_masks(tmp_path):
    """Files of transformers hold a generator, which fills masks, or a discriminator, which gets a new generator."""
    discriminator = tiny_task(Pretrainer, families()["electra"])
    save_checkpoint(discriminator, tmp_path / "discriminator", to="hf")
    save_checkpoint(discriminator.make_generator(), tmp_path / "generator", to="hf")
    models = {}
    for name in ("discriminator", "generator"):
        with pytest.warns(UserWarning, match="no generator") if name == "discriminator" else contextlib.nullcontext():
            models[name] = encoders._load_model(str(tmp_path / name), Recipe.from_preset(tmp_path / name, positions=23))
    assert {name: model.objective for name, model in models.items()} == {"discriminator": "rtd", "generator": None}


@pytest.mark.slow
def test_xlm_roberta_has_fairseqs_tokens(text, tmp_path):
    recipe = Recipe(**{**TINY, "family": "xlm_roberta", "vocabulary_size": 80})
    pretrain(text, tmp_path / "preset", recipe, verbose=False)
    model = MaskedLM.from_preset(tmp_path / "preset")
    tokenizer = model.preprocessor.tokenizer
    assert tokenizer.vocabulary[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokenizer.mask_id == tokenizer.vocabulary_size - 1 == model.backbone.vocabulary_size - 1
    assert tokenizer.vocabulary_size <= 80
    assert len(model.fill(["The ship left the <mask>."], top_k=2)[0]) == 2
