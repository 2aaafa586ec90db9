"""Pre-training with span boundaries, and its continuation."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.models import MaskedLM, Pretrainer
from lmzoo.pretraining import Recipe, encoders, pretrain
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from tests.pretraining.conftest import TINY

pytestmark = pytest.mark.usefixtures("eager")


def test_training_continues_with_the_stored_objective(tmp_path):
    """The stored heads tell the objective; a masked language model gets a new head for boundaries."""
    model = tiny_task(Pretrainer, families()["bert"], objective="sbo")
    model.save_to_preset(tmp_path / "preset")
    loaded = encoders._load_model(str(tmp_path / "preset"), Recipe.from_preset(tmp_path / "preset", positions=23))
    assert (loaded.objective, loaded.masking) == ("sbo", model.masking)
    for weight, stored in zip(loaded.weights, model.weights, strict=True):
        assert weight.path == stored.path
        if "position" not in weight.path:
            np.testing.assert_array_equal(weight, stored)
    tiny_task(MaskedLM, families()["bert"]).save_to_preset(tmp_path / "masks")
    recipe = Recipe.from_preset(tmp_path / "masks", positions=23, objective="sbo")
    loaded = encoders._load_model(str(tmp_path / "masks"), recipe)
    assert (loaded.objective, loaded.masking) == ("sbo", model.masking)


@pytest.mark.slow
def test_a_preset_predicts_boundaries_and_masks(text, tmp_path):
    recipe = Recipe(**{**TINY, "objective": "sbo", "learning_rate": 0.01})
    scores = pretrain(text, tmp_path / "preset", recipe, verbose=False)
    assert {"masked_lm_loss", "boundary_loss"} <= scores.keys()
    assert Pretrainer.from_preset(tmp_path / "preset").objective == "sbo"
    assert "| objective | sbo |" in (tmp_path / "preset/README.md").read_text("utf-8")
    assert len(MaskedLM.from_preset(tmp_path / "preset").fill(["The ship left the [MASK]."], top_k=2)[0]) == 2
