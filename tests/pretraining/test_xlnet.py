"""Pre-training of an XLNet, from text files to a preset."""

from __future__ import annotations

import math

import pytest

from lmzoo.models import Pretrainer, TextClassifier
from lmzoo.pretraining import Recipe, pretrain
from tests.pretraining.conftest import TINY

pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.slow
def test_training_continues_from_a_preset(text, tmp_path):
    recipe = Recipe(**{**TINY, "family": "xlnet", "tokens": 4_000, "learning_rate": 0.01})
    scores = pretrain(text, tmp_path / "preset", recipe, verbose=False)
    assert scores["loss"] < 0.9 * math.log(TINY["vocabulary_size"])
    model = Pretrainer.from_preset(tmp_path / "preset")
    assert model.objective == "plm"
    assert not model.preprocessor.tokenizer.lowercase
    assert TextClassifier.from_preset(tmp_path / "preset", num_classes=2).pooling == "mean"
    assert "plm" in (tmp_path / "preset/README.md").read_text("utf-8")
    sizes = {name: TINY[name] for name in ("sequence_length", "batch_size", "tokens")}
    next_scores = pretrain(text, tmp_path / "more", Recipe.from_preset(tmp_path / "preset", **sizes), verbose=False)
    assert next_scores["loss"] < 1.1 * scores["loss"]
