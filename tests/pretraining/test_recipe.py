"""Recipes of pre-training: sizes, masking, objectives, recipes for fine-tuning, and wrong fields."""

from __future__ import annotations

import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

import lmzoo.registry.family
from lmzoo.families.gpt2 import FAMILY as GPT2
from lmzoo.models import CausalLM, Pretrainer, Seq2SeqLM, TextClassifier, XlnetBackbone
from lmzoo.pretraining import Recipe
from lmzoo.pretraining.encoders import build_encoder_backbone
from lmzoo.pretraining.fine_tuning import choose_recipes_by_size
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_task
from lmzoo.text import Masking, SpanCorruption
from lmzoo.training import FineTuningRecipe


def test_sizes_are_layers_and_width():
    config = build_encoder_backbone(Recipe(size="2x192", positions=16), 50).config
    assert (config.num_layers, config.hidden_dim, config.num_heads, config.intermediate_dim) == (2, 192, 3, 768)
    assert Recipe(size="6x512").learning_rate == Recipe(size="small").learning_rate


def test_fields_set_the_masking():
    assert Recipe().masking == Masking()
    assert Recipe(mask_probability=0.4, whole_word=True, dynamic=False).masking == Masking(0.4, True, dynamic=False)
    assert Recipe("albert", mask_probability=0.2).masking == Masking(0.2, whole_word=True, ngram=3)
    assert Recipe("t5").span_corruption == SpanCorruption()
    assert Recipe("t5", objective="span_corruption", mask_probability=0.3).span_corruption == SpanCorruption(0.3)


OBJECTIVES = [
    ("bert", "mlm", "one of auto"),
    ("bert", "rtd", "auto or nsp or sop or sbo or none for bert, got 'rtd', which is for .*albert.*electra"),
    ("bert", "plm", ".* for bert, got 'plm'"),
    ("bert", "span_corruption", ".* for bert, got 'span_corruption', which is for t5"),
    ("roberta", "nsp", "auto or sbo or none for roberta, got 'nsp', which is for albert, bert"),
    ("electra", "nsp", "auto or rtd or sbo or none for electra, got 'nsp', which is for .*bert"),
    ("xlm_roberta", "sop", "auto or sbo or none for xlm_roberta, got 'sop', which is for "),
    ("xlnet", "nsp", ".* for xlnet, got 'nsp'"),
    ("xlnet", "none", ".* for xlnet, got 'none'"),
    ("t5", "sbo", "auto or span_corruption for t5, got 'sbo', which is for"),
]


@pytest.mark.parametrize(("family", "objective", "message"), OBJECTIVES)
def test_objectives_of_other_families_are_refused(family, objective, message):
    with pytest.raises(ValueError, match=f"`objective` must be {message}"):
        Recipe(family, objective=objective)


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("bart", {}, "`family` must be one of .*bert.*, got 'bart'"),
        ("marian", {}, "marian learns from pairs of texts"),
        ("bert", {"size": "huge"}, "`size` must be one of nano"),
        ("bert", {"size": "6x100"}, "multiple of 64, such as 6x256, got '6x100'"),
        ("bert", {"size": "6"}, 'base, or layers and width such as "6x256", got'),
        ("bert", {"size": "0x64"}, "must be one of nano"),
        ("elmo", {"size": "6x256"}, "must be one of nano, mini, small, medium, base, got '6x256'"),
        ("bert", {"optimizer": "sgd"}, "`optimizer` must be one of adamw, lamb"),
        ("bert", {"dtype": "mixed_bflot16"}, "`dtype` must be one of float32, mixed_bfloat16"),
        ("bert", {"tokens": 0}, "`tokens` must be a finite number of at least 1"),
        ("bert", {"seed": -1}, "`seed` must be an integer of at least 0"),
        ("bert", {"accumulate": 0}, "`accumulate` must be an integer of at least 1"),
        ("bert", {"learning_rate": 0}, "`learning_rate` must be above 0, got 0"),
        ("bert", {"sequence_length": 4}, "`sequence_length` must be an integer of at least 5 for bert, got 4"),
        ("t5", {"sequence_length": 3}, "`sequence_length` must be an integer of at least 4 for t5, got 3"),
        ("roberta", {"positions": 2}, "`positions` must be an integer of at least 3 for roberta"),
        ("t5", {"positions": 3}, "`positions` must be an integer of at least 4 for t5, got 3"),
        ("bert", {"batch_size": "32"}, "`batch_size` must be an integer of at least 1 for bert, got '32'"),
        ("bert", {"batch_size": 16.5}, "`batch_size` must be an integer of at least 1 for bert, got 16.5"),
        ("bert", {"positions": 23.0}, "`positions` must be an integer of at least 5 for bert, got 23.0"),
        ("bert", {"tokens": math.inf}, "`tokens` must be a finite number of at least 1 for bert, got inf"),
        ("elmo", {"vocabulary_size": 3}, "`vocabulary_size` must be an integer of at least 4 for elmo, got 3"),
        *(
            ("bert", {"mask_probability": value}, r"`mask_probability` must be a number in \(0, 1\]")
            for value in (0, 1.1, "a", True)
        ),
        ("elmo", {"optimizer": "lamb"}, "elmo does not use `optimizer`: .* Adagrad"),
        ("elmo", {"schedule": "wsd"}, "elmo does not use `schedule`"),
        ("elmo", {"objective": "none", "dynamic": False}, "elmo does not use `objective`, `dynamic`"),
        ("elmo", {"mask_probability": 0.2, "whole_word": True}, "elmo does not use `mask_probability`, `whole_word`"),
        ("elmo", {"accumulate": 2, "remat": True}, "elmo does not use `accumulate`, `remat`"),
        ("t5", {"whole_word": True}, "t5 does not use `whole_word`: it drops other spans of tokens in each batch"),
        ("t5", {"dynamic": False}, "t5 does not use `dynamic`"),
        (
            "t5",
            {"positions": 1793},
            "`positions` is 1793, for which 101 sentinels .*, but a T5Tokenizer has 100",
        ),
        ("t5", {"mask_probability": 0.5}, "`positions` is 512, .* with `mask_probability=0.5`, but a T5Tokenizer"),
        ("lstm_lm", {"remat": True}, "lstm_lm does not use `remat`: it has no blocks to recompute"),
        ("ffnn_lm", {"remat": True}, "ffnn_lm does not use `remat`"),
        ("gpt2", {"objective": "none"}, "gpt2 does not use `objective`: it learns to"),
        ("gpt2", {"whole_word": True}, "gpt2 does not use `whole_word`: it learns to"),
        ("gpt2", {"mask_probability": 0.3}, "gpt2 does not use `mask_probability`: it learns to"),
        ("gpt2", {"dynamic": False}, "gpt2 does not use `dynamic`: it learns to"),
    ],
)
def test_wrong_fields_are_refused(family, fields, message):
    with pytest.raises(ValueError, match=message):
        Recipe(family, **fields)


def test_the_longest_sequences_for_100_sentinels():
    assert Recipe("t5", positions=1792).positions == 1792


def test_numbers_of_numpy_become_numbers_of_python():
    fields = {"tokens": np.float64(6e7), "batch_size": np.int64(17), "seed": np.uint8(3), "remat": np.bool_(True)}
    recipe = Recipe(**fields, learning_rate=np.float32(0.5))
    stored = json.loads(json.dumps(dataclasses.asdict(recipe)))
    expected = {"tokens": 6e7, "batch_size": 17, "seed": 3, "remat": True, "learning_rate": 0.5}
    assert {name: stored[name] for name in expected} == expected
    assert Recipe(**stored) == recipe


def test_families_may_have_no_pretraining(monkeypatch):
    family = dataclasses.replace(families()["bert"], name="other", pretrained_head="")
    monkeypatch.setitem(lmzoo.registry.family._FAMILIES, "other", family)
    with pytest.raises(ValueError, match=r"other is not pre-trained from scratch\. Load a published model"):
        Recipe(family="other")


# === Recipes for fine-tuning ===


@pytest.mark.parametrize(
    ("width", "objective", "expected"),
    [
        (128, None, FineTuningRecipe(1e-3, epochs=6, pooling="mean")),
        (256, "sop", FineTuningRecipe(3e-4, epochs=6, pooling="mean")),
        (768, "nsp", FineTuningRecipe(5e-5, epochs=3, pooling="first")),
        (512, None, FineTuningRecipe(1e-4, epochs=3, pooling="mean")),
    ],
)
def test_fine_tuning_depends_on_the_width(width, objective, expected):
    """Wide models have the default recipe; they pool the first token's vector if an objective has trained it."""
    backbone = SimpleNamespace(config=SimpleNamespace(hidden_dim=width))
    recipes = choose_recipes_by_size(SimpleNamespace(backbone=backbone, objective=objective, family=families()["bert"]))
    assert recipes["classification"] == recipes["regression"] == recipes["multiple_choice"] == expected
    unpooled = {"token_classification", "question_answering", "embedding", "masked_lm"}
    without_pooling = dataclasses.replace(expected, pooling=None)
    assert {head for head, recipe in recipes.items() if recipe == without_pooling} == unpooled


def test_encoders_of_encoder_decoders_have_recipes():
    task = tiny_task(Seq2SeqLM, families()["t5"])
    task.backbone.fine_tuning = recipes = choose_recipes_by_size(task)
    width = task.backbone.config.hidden_dim
    rate = 3 * float(f"{5e-5 * (768 / width) ** (5 / 3):.1g}")
    assert recipes["seq2seq_lm"] == FineTuningRecipe(1e-3)
    assert recipes["token_classification"] == FineTuningRecipe(rate, epochs=6)
    assert recipes["classification"] == FineTuningRecipe(rate, epochs=6, pooling="mean")
    assert not recipes.keys() & {"masked_lm", "causal_lm"}
    assert TextClassifier(task.backbone.make_encoder(), num_classes=3).recipe == recipes["classification"]
    assert TextClassifier(tiny_backbone(families()["t5_encoder"]), num_classes=3).recipe == FineTuningRecipe(
        3 * 5e-5 * 768 / width
    )


def test_fine_tuning_of_wide_causal_models_reads_the_last_token():
    model = tiny_task(CausalLM, GPT2)
    object.__setattr__(model.backbone.config, "hidden_dim", 768)
    assert choose_recipes_by_size(model)["classification"].pooling == "first"


def test_fine_tuning_of_xlnet_does_not_read_the_last_token():
    backbone = XlnetBackbone(
        vocabulary_size=11, num_layers=1, num_heads=1, hidden_dim=512, intermediate_dim=3, max_sequence_length=5
    )
    assert choose_recipes_by_size(Pretrainer(backbone))["classification"].pooling == "mean"
