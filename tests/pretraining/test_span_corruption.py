"""Pre-training of T5 with span corruption, and fine-tuning of the preset on pairs."""

from __future__ import annotations

import shutil

import keras
import numpy as np
import pytest

from lmzoo.data.corpora import TokenCorpus, pack_running_text
from lmzoo.families.marian import FAMILY as MARIAN
from lmzoo.families.t5 import FAMILY
from lmzoo.models import Seq2SeqLM, TextClassifier
from lmzoo.pretraining import Recipe, encoders, estimate, pretrain
from lmzoo.pretraining.encoders import build_encoder_backbone
from lmzoo.testing import tiny_task
from lmzoo.text import Preprocessor, SpanCorruption
from lmzoo.training import FineTuningRecipe
from tests.pretraining.conftest import LINES, TINY, assert_same_weights
from tests.tasks.interruptions import Interrupted, Spy

pytestmark = pytest.mark.usefixtures("eager")
T5 = {**TINY, "family": "t5", "vocabulary_size": 130}
DOCUMENTS = [LINES[i % 4 :] + LINES[: i % 4] for i in range(103)]
EXACT = {"verbose": False, "weights_dtype": "float32"}


@pytest.mark.slow
def test_a_preset_is_fine_tuned_on_pairs(text, tmp_path):
    scores = pretrain(text, tmp_path / "preset", Recipe(**{**T5, "tokens": 2_000, "learning_rate": 0.01}), **EXACT)
    assert scores.keys() == {f"{name}{suffix}" for name in ("loss", "accuracy") for suffix in ("", "_at_23")}
    assert scores["loss"] < np.log(130) - 1
    model = Seq2SeqLM.from_preset(tmp_path / "preset")
    assert model.span_corruption is None
    assert (model.backbone.config.dropout, model.recipe) == (0.1, FineTuningRecipe(1e-3))
    # The score is the loss of the spans of held-out text.
    with_corruption = Seq2SeqLM.from_preset(tmp_path / "preset", span_corruption={}, sequence_length=17)
    preprocessor = Preprocessor(model.preprocessor.tokenizer, FAMILY.packing, with_corruption.longest_sequence)
    held_out = pack_running_text(TokenCorpus(tmp_path / "preset.work/held_out"), preprocessor)
    assert held_out.lengths[0] == SpanCorruption().text_length(17) == 18
    assert "calm.The" not in model.preprocessor.tokenizer.detokenize(held_out.token_ids)
    loss = with_corruption.evaluate(held_out, verbose=0)[0]
    assert loss == pytest.approx(scores["loss"], rel=0.1)  # the spans differ
    model.fit([("ship", "the ship"), ("sea", "the sea")], verbose=0)
    assert len(model.generate(["<extra_id_0> sea"], max_new_tokens=3)) == 1
    assert TextClassifier.from_preset(tmp_path / "preset", num_classes=2).backbone.config.hidden_dim == 64
    card = (tmp_path / "preset/README.md").read_text("utf-8")
    assert "lmzoo.models.Seq2SeqLM.from_preset" in card
    assert "| objective | span_corruption |" in card
    assert "| mask probability | 0.15 |" in card
    assert "| dynamic |" not in card
    assert "| Seq2SeqLM | 0.001 |" in card


@pytest.mark.slow
def test_an_interrupted_run_has_the_same_weights(tmp_path):
    """It is interrupted twice in the middle of an epoch."""
    recipe = Recipe(**T5, accumulate=2, remat=True)
    pretrain(DOCUMENTS, tmp_path / "whole", recipe, **EXACT)
    shutil.copytree(tmp_path / "whole.work/tokenizer", tmp_path / "continued.work/tokenizer")
    for step in (1, 2):
        with pytest.raises(Interrupted):
            pretrain(DOCUMENTS, tmp_path / "continued", recipe, callbacks=[Spy(step)], verbose=False)
    pretrain(DOCUMENTS, tmp_path / "continued", recipe, **EXACT)
    whole, continued = (Seq2SeqLM.from_preset(tmp_path / name) for name in ("whole", "continued"))
    assert_same_weights(continued, whole)


@pytest.mark.slow
def test_training_continues_from_a_preset(tmp_path):
    tiny_task(Seq2SeqLM, FAMILY).save_to_preset(tmp_path / "preset")
    recipe = Recipe.from_preset(tmp_path / "preset", mask_probability=0.3)
    assert (recipe.family, recipe.size, recipe.positions) == ("t5", "3x37", FAMILY.tiny.max_sequence_length)
    loaded = encoders._load_model(str(tmp_path / "preset"), recipe)
    assert loaded.span_corruption == SpanCorruption(0.3)
    assert_same_weights(loaded, Seq2SeqLM.from_preset(tmp_path / "preset"))
    tiny_task(Seq2SeqLM, MARIAN).save_to_preset(tmp_path / "pairs")
    with pytest.raises(ValueError, match="marian learns from pairs of texts, not from texts: use `lmzoo fit`"):
        Recipe.from_preset(tmp_path / "pairs")


def test_initial_values_depend_on_the_width():
    backbone = build_encoder_backbone(Recipe("t5", size="1x128", vocabulary_size=997), 997)
    assert backbone.config.initializer_range == 128**-0.5
    deviation = keras.ops.convert_to_numpy(backbone.embeddings.token_embedding.embeddings).std()
    assert deviation == pytest.approx(0.88, rel=0.03)  # a normal distribution, truncated at two deviations


def test_vocabularies_without_room_for_the_sentinels_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`vocabulary_size` is 61, .* the sentinels alone are 104"):
        pretrain(DOCUMENTS, tmp_path / "small", Recipe(**{**T5, "vocabulary_size": 61}), verbose=False)


@pytest.mark.slow
def test_the_estimate_counts_the_tokens_of_the_text(monkeypatch):
    """The sources and targets of a step stand for a longer text."""
    shapes, step = {}, 0.5
    monkeypatch.setattr(estimate._StepTimer, "seconds", lambda self: step)
    fit = keras.Model.fit

    def record_shapes(self, batches, **arguments):
        features, targets = next(batches)
        shapes.update({name: values.shape for name, values in features.items()}, targets=targets.shape)
        return fit(self, (batch for batch in [(features, targets)] * 3), **{**arguments, "steps_per_epoch": 3})

    monkeypatch.setattr(keras.Model, "fit", record_shapes)
    recipe = Recipe(**{**T5, "size": "1x64", "sequence_length": 64, "positions": 64})
    length = SpanCorruption().text_length(64)
    target_length = SpanCorruption().target_length(length)
    assert estimate.estimate_training_seconds(recipe) == pytest.approx(step * recipe.tokens / (5 * length))
    expected = dict.fromkeys(("token_ids", "padding_mask"), (5, 64))
    expected |= dict.fromkeys(("decoder_token_ids", "decoder_padding_mask", "targets"), (5, target_length))
    assert shapes == expected
