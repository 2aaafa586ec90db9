"""A claim about pre-training at equal FLOPs: replaced tokens or masked ones, in models of 2 × 128."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import lmzoo
from benchmarks.evidence.claim import Claim, Comparison, Setting
from benchmarks.evidence.trained import BASE, HOW, LENGTH, POS, SCALE, SST2, VOCABULARY, Training, train
from benchmarks.quality import DATASETS, some
from lmzoo.families.electra import ElectraConfig
from lmzoo.tasks.objectives.replaced_tokens import narrow_config
from lmzoo.text import Masking

RATES = (5e-4, 1e-3, 2e-3)
BUDGETS = {"small": 2_000_000, "large": 6_000_000}  # tokens that the masked language model reads


def flops_of_token(config: ElectraConfig, replaced: bool) -> float:
    """Return the floating-point operations of a token in training, three times those of the forward pass.

    They are those of products of matrices: a product with a weight counts two for each of its entries. (Clark et al.,
    2020, appendix F, count the same, and the rest, which is little.)
    """
    share = Masking().slots(LENGTH) / LENGTH
    if not replaced:
        return 6 * (_encoder(config) + share * _fill(config))
    generator, detection = narrow_config(config), config.hidden_dim**2 + config.hidden_dim
    return 6 * (_encoder(generator) + share * _fill(generator) + _encoder(config) + detection)


def _encoder(config: Any) -> float:
    """Return the entries of a model's kernels, and what attention multiplies for a token."""
    width, embedded = config.hidden_dim, config.embedding_dim
    block = 4 * width**2 + 2 * width * config.intermediate_dim + 2 * LENGTH * width
    return config.num_layers * block + (embedded * width if embedded != width else 0)


def _fill(config: Any) -> float:
    """Return the entries of the kernels that predict a masked token."""
    return config.hidden_dim * config.embedding_dim + config.embedding_dim * config.vocabulary_size


def arms() -> dict[str, Training]:
    """Both ways of training with each budget; what differs is the number of tokens."""
    config = ElectraConfig(
        vocabulary_size=VOCABULARY, num_layers=2, num_heads=2, hidden_dim=128, intermediate_dim=512, embedding_dim=128
    )
    ratio = flops_of_token(config, replaced=False) / flops_of_token(config, replaced=True)
    found = {}
    for name, tokens in BUDGETS.items():
        found[f"masked tokens, {name} budget"] = dataclasses.replace(BASE, tokens=tokens)
        found[f"replaced tokens, {name} budget"] = Training("electra", tokens=int(tokens * ratio), objective="rtd")
    return found


def fine_tune_best(arm: Training, seed: int, setting: Setting) -> dict[str, float]:
    """Return the scores after fine-tuning, of the best of three learning rates of the pre-training."""
    scores = [fine_tune(dataclasses.replace(arm, learning_rate=rate), seed, setting) for rate in RATES]
    return {name: max(score[name] for score in scores) for name in scores[0]}


def fine_tune(arm: Training, seed: int, setting: Setting) -> dict[str, float]:
    """Return the accuracies of a classifier and a tagger with the preset's recipes, on examples drawn by the seed."""
    preset, found = str(train(arm, seed, setting)), {}
    for name, kind, count in (("sst2", "TextClassifier", 4000), ("ewt", "TokenClassifier", 1000)):
        (texts, labels), dev = DATASETS[name].read(setting.data)
        chosen = np.random.default_rng(seed).permutation(len(texts))[: setting.size(count, 40)]
        texts, labels = [texts[i] for i in chosen], [labels[i] for i in chosen]
        tags = sorted({tag for tags in (*labels, *dev[1]) for tag in tags}) if name == "ewt" else None
        classes = {"num_classes": 2} if tags is None else {"labels": tags}
        task = getattr(lmzoo.models, kind).from_preset(preset, **classes)
        task.fit(texts, labels, task.recipe.batch_size, task.recipe.epochs, seed=seed, verbose=0)
        scores = task.evaluate(*some(dev, setting.size(2000, 20)), verbose=0, return_dict=True)
        found[{"sst2": SST2, "ewt": POS}[name]] = float(scores["accuracy"])
    return found


ARMS = arms()
CLAIMS = (
    Claim(
        name="replaced_tokens",
        title="Replaced tokens at equal FLOPs",
        says="A model that detects replaced tokens learns more per FLOP than one that fills masks.",
        source="Clark et al. (2020), figures 1 and 2, table 1",
        url="https://arxiv.org/abs/2003.10555",
        arms=ARMS,
        run=fine_tune_best,
        rule=tuple(
            Comparison(f"replaced tokens, {budget} budget", f"masked tokens, {budget} budget", measure)
            for budget in BUDGETS
            for measure in (SST2, POS)
        ),
        how=f"""{HOW} The budgets are the FLOPs of a masked language model that reads {BUDGETS["small"]:,} and
{BUDGETS["large"]:,} tokens. With the same FLOPs, an ELECTRA of the same size reads
{ARMS["replaced tokens, small budget"].tokens:,} and {ARMS["replaced tokens, large budget"].tokens:,} tokens; this
includes the FLOPs of its generator, which has a width of 32. Each arm is trained with peak learning rates of
0.0005, 0.001 and 0.002, and the best of the three counts, for each seed and each task. The tasks are SST-2 (4,000
sentences) and parts of speech (EWT, 1,000 sentences), fine-tuned with the recipes that the presets recommend.""",
        limits=f"{SCALE} In the paper, the smallest model has 12 layers, and a thousand times the FLOPs.",
    ),
)
