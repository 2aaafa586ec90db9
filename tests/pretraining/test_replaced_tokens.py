"""From text files to a discriminator with its generator, and to a model with fairseq's tokens."""

from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np
import pytest

import lmzoo.registry.family
from lmzoo.models import MaskedLM, Pretrainer, TextClassifier
from lmzoo.presets.converting import save_checkpoint
from lmzoo.pretraining import Recipe, encoders, pretrain
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from tests.pretraining.conftest import TINY

pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "objective"), [("electra", "auto"), ("albert", "rtd")])
def test_a_preset_and_its_continuation(family, objective, text, tmp_path):
    settings = {**TINY, "family": family, "objective": objective, "tokens": 4_000, "learning_rate": 0.01}
    scores = pretrain(text, tmp_path / "it", Recipe(**settings), verbose=False, weights_dtype="float32")
    assert scores["masked_lm_loss"] < math.log(TINY["vocabulary_size"])
    assert scores["replaced_tokens_loss"] < math.log(2)
    model = Pretrainer.from_preset(tmp_path / "it")
    assert (model.objective, model.backbone.hidden_dim, model.make_generator().backbone.hidden_dim) == ("rtd", 64, 16)
    assert TextClassifier.from_preset(tmp_path / "it", num_classes=2).pooling == "mean"
    assert "| objective | rtd |" in (tmp_path / "it/README.md").read_text("utf-8")
    sizes = {name: TINY[name] for name in ("sequence_length", "batch_size", "tokens")}
    recipe = Recipe.from_preset(tmp_path / "it", objective=objective, **sizes)
    begun = encoders._load_model(str(tmp_path / "it"), recipe)
    for new, old in zip(begun.weights, model.weights, strict=True):
        np.testing.assert_array_equal(new, old)
    again = pretrain(text, tmp_path / "more", recipe, verbose=False)
    assert again["loss"] < 1.1 * scores["loss"]


@pytest.mark.slow
def test_a_generator_continues_to_fill_masks(tmp_path):
    """Files of transformers hold one of both: what fills masks is trained as such, a discriminator with a generator."""
    discriminator = tiny_task(Pretrainer, families()["electra"])
    save_checkpoint(discriminator, tmp_path / "discriminator", to="hf")
    save_checkpoint(discriminator.make_generator(), tmp_path / "generator", to="hf")
    found = {}
    for name in ("discriminator", "generator"):
        with pytest.warns(UserWarning, match="no generator") if name == "discriminator" else contextlib.nullcontext():
            found[name] = encoders._load_model(str(tmp_path / name), Recipe.from_preset(tmp_path / name, positions=23))
    assert {name: model.objective for name, model in found.items()} == {"discriminator": "rtd", "generator": None}


@pytest.mark.slow
def test_a_model_with_fairseqs_tokens(text, tmp_path):
    pretrain(text, tmp_path / "it", Recipe(**{**TINY, "family": "xlm_roberta", "vocabulary_size": 80}), verbose=False)
    model = MaskedLM.from_preset(tmp_path / "it")
    tokenizer = model.preprocessor.tokenizer
    assert tokenizer.vocabulary[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokenizer.mask_id == tokenizer.vocabulary_size - 1 == model.backbone.vocabulary_size - 1
    assert tokenizer.vocabulary_size <= 80
    assert len(model.fill(["The ship left the <mask>."], top_k=2)[0]) == 2


@pytest.mark.parametrize(
    ("family", "objective", "message"),
    [
        ("bert", "rtd", "auto or nsp or sop or sbo or none for bert, got 'rtd', which is for .*albert.*electra"),
        ("electra", "nsp", "auto or rtd or sbo or none for electra, got 'nsp', which is for .*bert"),
        ("xlm_roberta", "sop", "auto or sbo or none for xlm_roberta, got 'sop', which is for "),
    ],
)
def test_objectives_that_do_not_fit(family, objective, message):
    with pytest.raises(ValueError, match=f"`objective` must be {message}"):
        Recipe(family=family, objective=objective)


def test_a_family_that_is_not_pretrained(monkeypatch):
    found = dataclasses.replace(families()["bert"], name="other", pretrained_head="")
    monkeypatch.setitem(lmzoo.registry.family._FAMILIES, "other", found)
    with pytest.raises(ValueError, match=r"other is not pre-trained from scratch\. Load a published model"):
        Recipe(family="other")
