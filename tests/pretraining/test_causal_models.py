"""Pre-training of causal models, from text files to a preset that continues texts."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from lmzoo.data.corpora import TokenCorpus, pack_continuously
from lmzoo.errors import ArgumentError
from lmzoo.families.gpt2 import FAMILY
from lmzoo.models import CausalLM, TextClassifier
from lmzoo.pretraining import Recipe, pretrain
from lmzoo.text import Preprocessor
from tests.pretraining.conftest import LINES, TINY

pytestmark = pytest.mark.usefixtures("eager")
GPT2 = {**TINY, "family": "gpt2", "vocabulary_size": 270}


@pytest.mark.slow
def test_a_preset_continues_texts_and_training(text, tmp_path):
    recipe = Recipe(**{**GPT2, "tokens": 6_000, "learning_rate": 0.01})
    scores = pretrain(text, tmp_path / "preset", recipe, verbose=False, weights_dtype="float32")
    assert scores.keys() == {
        f"{name}{suffix}" for name in ("loss", "accuracy", "perplexity") for suffix in ("", "_at_23")
    }
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert scores["perplexity"] < 100  # of 270
    model = CausalLM.from_preset(tmp_path / "preset")
    # The scores are of the held-out document in full sequences.
    preprocessor = Preprocessor(model.preprocessor.tokenizer, FAMILY.packing, 17)
    packed = pack_continuously(TokenCorpus(tmp_path / "preset.work/held_out"), preprocessor)
    assert model.measure(packed, None, 5, verbose=0)["loss"] == pytest.approx(scores["loss"], rel=1e-5)
    assert set(packed.lengths[:-1]) == {18}
    assert "calm. The" in model.preprocessor.tokenizer.detokenize(packed.token_ids)  # not "calm.The"
    assert len(model.generate(["The ship"], max_new_tokens=4)[0]) > 3
    assert TextClassifier.from_preset(tmp_path / "preset", num_classes=2).pooling == "mean"
    card = (tmp_path / "preset/README.md").read_text("utf-8")
    assert "lmzoo.models.CausalLM.from_preset" in card
    assert f"| perplexity | {scores['perplexity']:.4g} |" in card
    assert "| CausalLM | 0.003 | 6 |" in card
    assert "mask" not in card.lower()
    # Training continues from there, with little left to learn.
    sizes = {name: GPT2[name] for name in ("tokens", "sequence_length", "batch_size")}
    next_recipe = Recipe.from_preset(tmp_path / "preset", **sizes)
    assert (next_recipe.family, next_recipe.vocabulary_size, next_recipe.positions) == ("gpt2", 270, 23)
    next_scores = pretrain(text, tmp_path / "more", next_recipe, verbose=False)
    assert next_scores["perplexity"] < scores["perplexity"] * 1.2


@pytest.mark.slow
def test_batches_are_not_padded(text, tmp_path, monkeypatch):
    """Sequences of one more token than a multiple of eight fill their batches."""
    widths = set()
    make_batch = CausalLM.make_batch

    def record_width(self, examples, indices, width, rng):
        widths.add(width)
        return make_batch(self, examples, indices, width, rng)

    monkeypatch.setattr(CausalLM, "make_batch", record_width)
    pretrain(text, tmp_path / "preset", Recipe(**{**GPT2, "tokens": 500}), verbose=False)
    assert widths == {18, 24}  # for 17 and 23 tokens to predict


@pytest.mark.slow
def test_perplexities_of_a_mixture_are_averaged(text, tmp_path):
    """The perplexity of all texts is the mean of their logarithms."""
    second_text = tmp_path / "other.txt"
    second_text.write_text("\n\n".join([" ".join(LINES[::-1])] * 101), "utf-8")
    texts = {str(text): 3, str(second_text): 1}
    scores = pretrain(texts, tmp_path / "preset", Recipe(**GPT2, remat=True), verbose=False)
    parts = [scores[f"perplexity_{name}"] for name in ("tales", "other")]
    assert scores["perplexity"] == pytest.approx(math.exp(np.dot([0.75, 0.25], np.log(parts))))
    assert not CausalLM.from_preset(tmp_path / "preset").backbone.remat


@pytest.mark.slow
def test_gpt_is_trained_without_document_borders(text, tmp_path):
    recipe = Recipe(**{**GPT2, "family": "gpt", "vocabulary_size": 90})
    scores = pretrain(text, tmp_path / "preset", recipe, verbose=False)
    assert math.isfinite(scores["perplexity"])
    model = CausalLM.from_preset(tmp_path / "preset")
    assert model.preprocessor.tokenizer.tokenize(["The SHIP"]) == model.preprocessor.tokenizer.tokenize(["the ship"])
    assert model.generate(["The ship"], max_new_tokens=4)[0].startswith(" ")


def test_text_without_a_sequence_is_refused_before_the_training(text, tmp_path, monkeypatch):
    """GPT adds no special tokens, so a lone token has nothing to predict."""
    monkeypatch.setattr("lmzoo.pretraining.run.Run.fit", None)
    recipe = Recipe(**{**GPT2, "family": "gpt", "vocabulary_size": 90})
    message = r"has too few tokens for a sequence \(1\)\. Pass longer text"
    with pytest.raises(ArgumentError, match=rf"The held-out text {message} \(`validation`\)"):
        pretrain(text, tmp_path / "preset", recipe, [["."]], verbose=False)
    (tmp_path / "dot.txt").write_text(".", "utf-8")
    mixture = {text: 3, tmp_path / "dot.txt": 1}
    with pytest.raises(ArgumentError, match=rf"The corpus dot {message} \(`corpus`\)"):
        pretrain(mixture, tmp_path / "mixture", recipe, [LINES], verbose=False)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["lstm_lm", "ffnn_lm"])
def test_models_without_attention_are_trained(text, tmp_path, family):
    recipe = Recipe(**{**GPT2, "family": family, "size": "3x128"})
    assert recipe.learning_rate == 0.01
    scores = pretrain(text, tmp_path / "preset", recipe, verbose=False)
    config = CausalLM.from_preset(tmp_path / "preset").backbone.config
    assert (config.hidden_dim, config.max_sequence_length) == (128, 23)
    assert getattr(config, "num_layers", 3) == 3
    assert scores["perplexity"] < 150  # of 270


def test_tokens_may_be_words(text, tmp_path):
    recipe = Recipe(**{**GPT2, "family": "ffnn_lm", "vocabulary_size": 13, "words": True})
    scores = pretrain(text, tmp_path / "preset", recipe, verbose=False)
    model = CausalLM.from_preset(tmp_path / "preset")
    tokenizer = model.preprocessor.tokenizer
    assert tokenizer.vocabulary[:4] == ["<|endoftext|>", "<unk>", ".", "The"]
    assert model.backbone.config.vocabulary_size == 13
    packed = pack_continuously(TokenCorpus(tmp_path / "preset.work/held_out"), model.preprocessor)
    assert "at dawn . Nobody had <unk> the <unk> ." in tokenizer.detokenize(packed.token_ids)
    assert scores["perplexity"] < 13
    pretrain(text, tmp_path / "preset", recipe, verbose=False, overwrite=True)  # with the run's vocabulary
    assert CausalLM.from_preset(tmp_path / "preset").preprocessor.tokenizer.vocabulary == tokenizer.vocabulary
    from_preset = partial(Recipe.from_preset, tmp_path / "preset")
    for make in (partial(Recipe, family="gpt2"), partial(Recipe, family="elmo"), from_preset):
        with pytest.raises(ValueError, match="`words` is for lstm_lm and ffnn_lm that begin with random weights"):
            make(words=True)
