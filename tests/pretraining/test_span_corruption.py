"""From text files to an encoder-decoder that writes dropped spans, and its fine-tuning on pairs."""

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
from lmzoo.pretraining.encoders import encoder_backbone
from lmzoo.testing import tiny_task
from lmzoo.text import Preprocessor, SpanCorruption
from lmzoo.training import FineTuningRecipe
from tests.pretraining.conftest import LINES, TINY, Interrupted, Stop

pytestmark = pytest.mark.usefixtures("eager")
T5 = {**TINY, "family": "t5", "vocabulary_size": 130}
DOCUMENTS = [LINES[i % 4 :] + LINES[: i % 4] for i in range(103)]
EXACT = {"verbose": False, "weights_dtype": "float32"}


@pytest.mark.slow
def test_a_preset_and_its_fine_tuning(text, tmp_path):
    scores = pretrain(text, tmp_path / "it", Recipe(**{**T5, "tokens": 2_000, "learning_rate": 0.01}), **EXACT)
    assert scores.keys() == {f"{name}{at}" for name in ("loss", "accuracy") for at in ("", "_at_23")}
    assert scores["loss"] < np.log(130) - 1
    model = Seq2SeqLM.from_preset(tmp_path / "it")
    assert model.span_corruption is None
    assert (model.backbone.config.dropout, model.recipe) == (0.1, FineTuningRecipe(1e-3))
    # The score is the loss of the spans of held-out text.
    again = Seq2SeqLM.from_preset(tmp_path / "it", span_corruption={}, sequence_length=17)
    preprocessor = Preprocessor(model.preprocessor.tokenizer, FAMILY.packing, again.longest_sequence)
    held_out = pack_running_text(TokenCorpus(tmp_path / "it.work/held_out"), preprocessor)
    assert held_out.lengths[0] == SpanCorruption().text_length(17) == 18
    assert "calm.The" not in model.preprocessor.tokenizer.detokenize(held_out.token_ids)
    assert again.evaluate(held_out, verbose=0)[0] == pytest.approx(scores["loss"], rel=0.1)  # of other spans
    model.fit([("ship", "the ship"), ("sea", "the sea")], verbose=0)
    assert len(model.generate(["<extra_id_0> sea"], max_new_tokens=3)) == 1
    assert TextClassifier.from_preset(tmp_path / "it", num_classes=2).backbone.config.hidden_dim == 64
    card = (tmp_path / "it/README.md").read_text("utf-8")
    assert "lmzoo.models.Seq2SeqLM.from_preset" in card
    assert "| objective | span_corruption |" in card
    assert "| mask probability | 0.15 |" in card
    assert "| dynamic |" not in card
    assert "| Seq2SeqLM | 0.001 |" in card


@pytest.mark.slow
def test_an_interrupted_run_has_the_same_weights(tmp_path):
    """In the middle of an epoch, twice; then it is done."""
    recipe = Recipe(**T5, accumulate=2, remat=True)
    pretrain(DOCUMENTS, tmp_path / "whole", recipe, **EXACT)
    shutil.copytree(tmp_path / "whole.work/tokenizer", tmp_path / "again.work/tokenizer")
    for step in (1, 2):
        with pytest.raises(Interrupted):
            pretrain(DOCUMENTS, tmp_path / "again", recipe, callbacks=[Stop(step)], verbose=False)
    pretrain(DOCUMENTS, tmp_path / "again", recipe, **EXACT)
    whole, again = (Seq2SeqLM.from_preset(tmp_path / name) for name in ("whole", "again"))
    for ours, theirs in zip(whole.weights, again.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_training_goes_on_from_a_preset(tmp_path):
    tiny_task(Seq2SeqLM, FAMILY).save_to_preset(tmp_path / "it")
    recipe = Recipe.from_preset(tmp_path / "it", mask_probability=0.3)
    assert (recipe.family, recipe.size, recipe.positions) == ("t5", "3x37", FAMILY.tiny.max_sequence_length)
    loaded = encoders._load_model(str(tmp_path / "it"), recipe)
    assert loaded.span_corruption == SpanCorruption(0.3)
    for new, old in zip(loaded.weights, Seq2SeqLM.from_preset(tmp_path / "it").weights, strict=True):
        np.testing.assert_array_equal(new, old)
    tiny_task(Seq2SeqLM, MARIAN).save_to_preset(tmp_path / "pairs")
    with pytest.raises(ValueError, match="marian learns from pairs of texts, not from texts: use `lmzoo fit`"):
        Recipe.from_preset(tmp_path / "pairs")


def test_recipes():
    assert Recipe("t5").span_corruption == SpanCorruption()
    assert Recipe("t5", objective="span_corruption", mask_probability=0.5).span_corruption == SpanCorruption(0.5)
    for settings, message in (
        ({"objective": "sbo"}, "`objective` must be auto or span_corruption for t5, got 'sbo', which is for"),
        ({"whole_word": True}, "t5 does not use `whole_word`: it drops other spans of tokens in each batch"),
        ({"dynamic": False}, "t5 does not use `dynamic`"),
        ({"sequence_length": 3}, "`sequence_length` must be at least 4 for t5, got 3"),
        ({"positions": 3}, "`positions` must be at least 4 for t5, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            Recipe("t5", **settings)
    with pytest.raises(ValueError, match=r"`objective` must be .* for bert, got 'span_corruption', which is for t5"):
        Recipe("bert", objective="span_corruption")
    with pytest.raises(ValueError, match="marian learns from pairs of texts"):
        Recipe("marian")


def test_initial_values_are_those_of_the_family():
    """Whose deviations depend on the width by themselves."""
    backbone = encoder_backbone(Recipe("t5", size="1x128", vocabulary_size=997), 997)
    assert backbone.config.initializer_range == 128**-0.5
    deviation = keras.ops.convert_to_numpy(backbone.embeddings.token_embedding.embeddings).std()
    assert deviation == pytest.approx(0.88, rel=0.03)  # a normal distribution that is truncated at two deviations


def test_sentinels_that_run_out(tmp_path):
    """100 sentinels are enough for sequences of some 1,800 tokens."""
    recipe = Recipe(**{**T5, "sequence_length": 2100, "positions": 2100, "tokens": 9_000, "batch_size": 1})
    with pytest.raises(ValueError, match=r"Sequences of \d+ tokens have 11\d dropped spans, .* the tokenizer has 100"):
        pretrain(DOCUMENTS * 5, tmp_path / "it", recipe, DOCUMENTS * 5, verbose=False)
    with pytest.raises(ValueError, match=r"`vocabulary_size` is 61, .* the sentinels alone are 104"):
        pretrain(DOCUMENTS, tmp_path / "small", Recipe(**{**T5, "vocabulary_size": 61}), verbose=False)


@pytest.mark.slow
def test_the_estimate_counts_text(monkeypatch):
    """Per step, the model reads sources and targets that stand for a longer text."""
    shapes, step = {}, 0.5
    monkeypatch.setattr(estimate._StepTimer, "seconds", lambda self: step)
    fit = keras.Model.fit

    def see(self, batches, **arguments):
        features, targets = next(batches)
        shapes.update({name: values.shape for name, values in features.items()}, targets=targets.shape)
        return fit(self, (batch for batch in [(features, targets)] * 3), **{**arguments, "steps_per_epoch": 3})

    monkeypatch.setattr(keras.Model, "fit", see)
    recipe = Recipe(**{**T5, "size": "1x64", "sequence_length": 64, "positions": 64})
    length = SpanCorruption().text_length(64)
    target_length = SpanCorruption().target_length(length)
    assert estimate.training_seconds(recipe) == pytest.approx(step * recipe.tokens / (5 * length))
    source, target = (5, 64), (5, target_length)
    expected = {
        "token_ids": source,
        "padding_mask": source,
        "decoder_token_ids": target,
        "decoder_padding_mask": target,
    }
    assert shapes == {**expected, "targets": target}
