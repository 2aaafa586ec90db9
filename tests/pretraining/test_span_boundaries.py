"""From text files to a model of spans, and its continuation."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.models import MaskedLM, Pretrainer
from lmzoo.pretraining import Recipe, encoders, pretrain
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from tests.pretraining.conftest import TINY

pytestmark = pytest.mark.usefixtures("eager")


def test_training_goes_on_with_spans(tmp_path):
    """The stored heads say which objective; those of a masked language model lack the boundaries' head."""
    model = tiny_task(Pretrainer, families()["bert"], objective="sbo")
    model.save_to_preset(tmp_path / "it")
    loaded = encoders._load_model(str(tmp_path / "it"), Recipe.from_preset(tmp_path / "it", positions=23))
    assert (loaded.objective, loaded.masking) == ("sbo", model.masking)
    for new, old in zip(loaded.weights, model.weights, strict=True):
        assert new.path == old.path
        if "position" not in new.path:
            np.testing.assert_array_equal(new, old)
    tiny_task(MaskedLM, families()["bert"]).save_to_preset(tmp_path / "masks")
    recipe = Recipe.from_preset(tmp_path / "masks", positions=23, objective="sbo")
    loaded = encoders._load_model(str(tmp_path / "masks"), recipe)
    assert (loaded.objective, loaded.masking) == ("sbo", model.masking)


@pytest.mark.slow
def test_a_preset(text, tmp_path):
    recipe = Recipe(**{**TINY, "objective": "sbo", "learning_rate": 0.01})
    scores = pretrain(text, tmp_path / "it", recipe, verbose=False)
    assert {"masked_lm_loss", "boundary_loss"} <= scores.keys()
    assert Pretrainer.from_preset(tmp_path / "it").objective == "sbo"
    assert "| objective | sbo |" in (tmp_path / "it/README.md").read_text("utf-8")
    assert len(MaskedLM.from_preset(tmp_path / "it").fill(["The ship left the [MASK]."], top_k=2)[0]) == 2
