"""From text files to a preset that continues texts."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from lmzoo.data.corpora import TokenCorpus, pack_continuously
from lmzoo.families.gpt2 import FAMILY
from lmzoo.models import CausalLM, TextClassifier
from lmzoo.pretraining import Recipe, pretrain
from lmzoo.pretraining.fine_tuning import recipes_by_size
from lmzoo.testing import tiny_task
from lmzoo.text import Preprocessor
from tests.pretraining.conftest import LINES, TINY

pytestmark = pytest.mark.usefixtures("eager")
GPT2 = {**TINY, "family": "gpt2", "vocabulary_size": 270}


@pytest.mark.slow
def test_a_preset_and_its_continuation(text, tmp_path):
    said = []
    recipe = Recipe(**{**GPT2, "tokens": 6_000, "learning_rate": 0.01})
    scores = pretrain(text, tmp_path / "it", recipe, say=said.append, verbose=False, weights_dtype="float32")
    assert scores.keys() == {f"{name}{at}" for name in ("loss", "accuracy", "perplexity") for at in ("", "_at_23")}
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert scores["perplexity"] < 100  # of 270
    model = CausalLM.from_preset(tmp_path / "it")
    # The scores are those of the held-out document in full sequences.
    preprocessor = Preprocessor(model.preprocessor.tokenizer, FAMILY.packing, 17)
    packed = pack_continuously(TokenCorpus(tmp_path / "it.work/held_out"), preprocessor)
    assert model.measure(packed, None, 5, verbose=0)["loss"] == pytest.approx(scores["loss"], rel=1e-5)
    assert set(packed.lengths[:-1]) == {18}
    assert "calm. The" in model.preprocessor.tokenizer.detokenize(packed.token_ids)  # not "calm.The"
    assert len(model.generate(["The ship"], max_new_tokens=4)[0]) > 3
    assert TextClassifier.from_preset(tmp_path / "it", num_classes=2).pooling == "mean"
    card = (tmp_path / "it/README.md").read_text("utf-8")
    assert "lmzoo.models.CausalLM.from_preset" in card
    assert f"| perplexity | {scores['perplexity']:.4g} |" in card
    assert "| CausalLM | 0.003 | 6 |" in card
    assert "mask" not in card.lower()
    # From there on, with little left to learn.
    again = Recipe.from_preset(tmp_path / "it", **{k: GPT2[k] for k in ("tokens", "sequence_length", "batch_size")})
    assert (again.family, again.vocabulary_size, again.positions) == ("gpt2", 270, 23)
    longer = pretrain(text, tmp_path / "more", again, verbose=False)
    assert longer["perplexity"] < scores["perplexity"] * 1.2


@pytest.mark.slow
def test_batches_are_not_padded(text, tmp_path, monkeypatch):
    """Sequences of one more token than a multiple of eight fill their batches."""
    widths = set()
    make_batch = CausalLM.make_batch

    def noting(self, examples, indices, width, rng):
        widths.add(width)
        return make_batch(self, examples, indices, width, rng)

    monkeypatch.setattr(CausalLM, "make_batch", noting)
    pretrain(text, tmp_path / "it", Recipe(**{**GPT2, "tokens": 500}), verbose=False)
    assert widths == {18, 24}  # for 17 and 23 tokens to predict


@pytest.mark.slow
def test_a_mixture(text, tmp_path):
    """The perplexity of all texts is the mean of their logarithms."""
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join([" ".join(LINES[::-1])] * 101), "utf-8")
    found = pretrain({str(text): 3, str(other): 1}, tmp_path / "it", Recipe(**GPT2, remat=True), verbose=False)
    parts = [found[f"perplexity_{name}"] for name in ("tales", "other")]
    assert found["perplexity"] == pytest.approx(math.exp(np.dot([0.75, 0.25], np.log(parts))))
    assert not CausalLM.from_preset(tmp_path / "it").backbone.remat


def test_fields_that_are_not_for_it():
    for setting in ({"objective": "none"}, {"whole_word": True}, {"mask_probability": 0.3}, {"dynamic": False}):
        with pytest.raises(ValueError, match=f"gpt2 does not use `{next(iter(setting))}`: it learns to"):
            Recipe(**GPT2, **setting)


def test_recipes_for_wide_models_read_the_last_token():
    model = tiny_task(CausalLM, FAMILY)
    object.__setattr__(model.backbone.config, "hidden_dim", 768)
    assert recipes_by_size(model)["classification"].pooling == "first"


@pytest.mark.slow
def test_gpt(text, tmp_path):
    """Whose documents have no borders."""
    scores = pretrain(text, tmp_path / "it", Recipe(**{**GPT2, "family": "gpt", "vocabulary_size": 90}), verbose=False)
    assert math.isfinite(scores["perplexity"])
    model = CausalLM.from_preset(tmp_path / "it")
    assert model.preprocessor.tokenizer.tokenize(["The SHIP"]) == model.preprocessor.tokenizer.tokenize(["the ship"])
    assert model.generate(["The ship"], max_new_tokens=4)[0].startswith(" ")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["lstm_lm", "ffnn_lm"])
def test_models_without_attention(text, tmp_path, family):
    recipe = Recipe(**{**GPT2, "family": family, "size": "3x128"})
    assert recipe.learning_rate == 0.01
    scores = pretrain(text, tmp_path / "it", recipe, verbose=False)
    config = CausalLM.from_preset(tmp_path / "it").backbone.config
    assert (config.hidden_dim, config.max_sequence_length) == (128, 23)
    assert getattr(config, "num_layers", 3) == 3
    assert scores["perplexity"] < 150  # of 270
    with pytest.raises(ValueError, match="remat"):
        pretrain(text, tmp_path / "other", Recipe(**{**GPT2, "family": family, "remat": True}), verbose=False)


def test_words_as_tokens(text, tmp_path):
    recipe = Recipe(**{**GPT2, "family": "ffnn_lm", "vocabulary_size": 13, "words": True})
    scores = pretrain(text, tmp_path / "it", recipe, verbose=False)
    model = CausalLM.from_preset(tmp_path / "it")
    tokenizer = model.preprocessor.tokenizer
    assert tokenizer.vocabulary[:4] == ["<|endoftext|>", "<unk>", ".", "The"]
    assert model.backbone.config.vocabulary_size == 13
    packed = pack_continuously(TokenCorpus(tmp_path / "it.work/held_out"), model.preprocessor)
    assert "at dawn . Nobody had <unk> the <unk> ." in tokenizer.detokenize(packed.token_ids)
    assert scores["perplexity"] < 13
    pretrain(text, tmp_path / "it", recipe, verbose=False, overwrite=True)  # with the vocabulary of the run's folder
    assert CausalLM.from_preset(tmp_path / "it").preprocessor.tokenizer.vocabulary == tokenizer.vocabulary
    begun = partial(Recipe.from_preset, tmp_path / "it")
    for make in (partial(Recipe, family="gpt2"), partial(Recipe, family="elmo"), begun):
        with pytest.raises(ValueError, match="`words` is for lstm_lm and ffnn_lm that begin with random weights"):
            make(words=True)
