"""From text files to an XLNet."""

from __future__ import annotations

import math

import pytest

from lmzoo.models import Pretrainer, TextClassifier, XlnetBackbone
from lmzoo.pretraining import Recipe, pretrain
from lmzoo.pretraining.fine_tuning import recipes_by_size
from tests.pretraining.conftest import TINY

pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.slow
@pytest.mark.slow
def test_a_preset_and_its_continuation(text, tmp_path):
    recipe = Recipe(**{**TINY, "family": "xlnet", "tokens": 4_000, "learning_rate": 0.01})
    scores = pretrain(text, tmp_path / "it", recipe, verbose=False)
    assert scores["loss"] < 0.9 * math.log(TINY["vocabulary_size"])
    model = Pretrainer.from_preset(tmp_path / "it")
    assert model.objective == "plm"
    assert not model.preprocessor.tokenizer.lowercase
    assert TextClassifier.from_preset(tmp_path / "it", num_classes=2).pooling == "mean"
    assert "plm" in (tmp_path / "it/README.md").read_text("utf-8")
    sizes = {name: TINY[name] for name in ("sequence_length", "batch_size", "tokens")}
    again = pretrain(text, tmp_path / "more", Recipe.from_preset(tmp_path / "it", **sizes), verbose=False)
    assert again["loss"] < 1.1 * scores["loss"]


def test_no_objective_trains_the_last_token():
    backbone = XlnetBackbone(
        vocabulary_size=11, num_layers=1, num_heads=1, hidden_dim=512, intermediate_dim=3, max_sequence_length=5
    )
    assert recipes_by_size(Pretrainer(backbone))["classification"].pooling == "mean"


@pytest.mark.parametrize(("family", "objective"), [("xlnet", "nsp"), ("xlnet", "none"), ("bert", "plm")])
def test_objectives_that_do_not_fit(family, objective):
    with pytest.raises(ValueError, match=f"`objective` must be .* for {family}, got '{objective}'"):
        Recipe(family=family, objective=objective)
