"""A claim about pre-training at equal FLOPs: replaced or masked tokens, in models of 2 × 128."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import lmzoo
from benchmarks.evidence.claim import Claim, Comparison, Setting
from benchmarks.evidence.trained import BASE, HOW, LENGTH, POS, SST2, VOCABULARY, Training, train
from benchmarks.quality import DATASETS, sample
from lmzoo.families.electra import ElectraConfig
from lmzoo.tasks.objectives.replaced_tokens import make_narrow_config
from lmzoo.text import Masking

RATES = (5e-4, 1e-3, 2e-3)
BUDGETS = {"small": 2_000_000, "large": 6_000_000}  # tokens that the masked language model reads
CONFIG = ElectraConfig(
    vocabulary_size=VOCABULARY, num_layers=2, num_heads=2, hidden_dim=128, intermediate_dim=512, embedding_dim=128
)


def count_flops_per_token(config: ElectraConfig, replaced: bool) -> float:
    """Return the floating-point operations per token in training, three times the operations of the forward pass.

    Only matrix products count, with two operations per entry of a weight. (Clark et al., 2020, appendix F, also count
    the other operations, which are few.)
    """
    fraction = Masking().slots(LENGTH) / LENGTH
    if not replaced:
        return 6 * (count_encoder_products(config) + fraction * count_prediction_products(config))
    generator, detection = make_narrow_config(config), config.hidden_dim**2 + config.hidden_dim
    return 6 * (
        count_encoder_products(generator)
        + fraction * count_prediction_products(generator)
        + count_encoder_products(config)
        + detection
    )


def count_encoder_products(config: Any, gated: bool = False) -> float:
    """Return the number of multiplications per token in an encoder: its blocks, and the projection of embeddings."""
    width, embedded = config.hidden_dim, getattr(config, "embedding_dim", config.hidden_dim)
    block = 4 * width**2 + (3 if gated else 2) * width * config.intermediate_dim + 2 * LENGTH * width
    return config.num_layers * block + (embedded * width if embedded != width else 0)


def count_prediction_products(config: Any) -> float:
    """Return the number of multiplications in the prediction of a masked token."""
    embedded = getattr(config, "embedding_dim", config.hidden_dim)
    return config.hidden_dim * embedded + embedded * config.vocabulary_size


def make_arms() -> dict[str, Training]:
    """Return the arms: both objectives with each budget of FLOPs, from which the number of tokens follows."""
    ratio = count_flops_per_token(CONFIG, replaced=False) / count_flops_per_token(CONFIG, replaced=True)
    trainings = {}
    for name, tokens in BUDGETS.items():
        trainings[f"masked tokens, {name} budget"] = dataclasses.replace(BASE, tokens=tokens)
        trainings[f"replaced tokens, {name} budget"] = Training("electra", tokens=int(tokens * ratio), objective="rtd")
    return trainings


def fine_tune_best(arm: Training, seed: int, setting: Setting) -> dict[str, float]:
    """Return the scores after fine-tuning, for the best of three learning rates of the pre-training."""
    scores = [fine_tune(dataclasses.replace(arm, learning_rate=rate), seed, setting) for rate in RATES]
    return {name: max(score[name] for score in scores) for name in scores[0]}


def fine_tune(arm: Training, seed: int, setting: Setting) -> dict[str, float]:
    """Return the accuracies of a classifier and a tagger, trained with the preset's recipes on random examples."""
    preset, accuracies = str(train(arm, seed, setting)), {}
    for name, kind, count in (("sst2", "TextClassifier", 4000), ("ewt", "TokenClassifier", 1000)):
        (texts, labels), dev = DATASETS[name].read(setting.data)
        chosen = np.random.default_rng(seed).permutation(len(texts))[: setting.size(count, 40)]
        texts, labels = [texts[i] for i in chosen], [labels[i] for i in chosen]
        tags = sorted({tag for tags in (*labels, *dev[1]) for tag in tags}) if name == "ewt" else None
        classes = {"num_classes": 2} if tags is None else {"labels": tags}
        task = getattr(lmzoo.models, kind).from_preset(preset, **classes)
        task.fit(texts, labels, task.recipe.batch_size, task.recipe.epochs, seed=seed, verbose=0)
        scores = task.evaluate(*sample(dev, setting.size(2000, 20)), verbose=0, return_dict=True)
        accuracies[{"sst2": SST2, "ewt": POS}[name]] = float(scores["accuracy"])
    return accuracies


ARMS = make_arms()
FLOPS = {name: tokens * count_flops_per_token(CONFIG, replaced=False) for name, tokens in BUDGETS.items()}
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
{BUDGETS["large"]:,} tokens: {FLOPS["small"] / 1e12:.1f}·10¹² and {FLOPS["large"] / 1e12:.1f}·10¹².
With the same FLOPs, an ELECTRA of the same size reads
{ARMS["replaced tokens, small budget"].tokens:,} and {ARMS["replaced tokens, large budget"].tokens:,} tokens; this
includes the FLOPs of its generator, which has a width of 32. Each arm is trained with peak learning rates of
0.0005, 0.001 and 0.002, and the best of the three counts, for each seed and each task. The tasks are SST-2 (4,000
sentences) and parts of speech (EWT, 1,000 sentences), fine-tuned with the recipes that the presets recommend.""",
        limits="In the paper, the smallest model has 12 layers, and a thousand times the FLOPs.",
        reading="""With three times the FLOPs, masks gain seven points for parts of speech, and replaced tokens gain
nothing. The discriminator has hardly begun to learn: after 5.4 million tokens, with each of the learning rates, it is
right about 87% of the tokens of held-out text, and 87% of these tokens were not replaced. Always answering "original"
would do as well. SST-2 does not separate the arms: with replaced tokens, the three seeds are up to six points
apart.""",
    ),
)
