"""Accuracy of `CausalLM.classify` on SST-2 without training, zero-shot and few-shot.

    python -m benchmarks.prompting [--data DATA] [--preset gpt2_nano_en]

A sentence is followed by "It was", and the choices are "great" and "terrible" (Gao et al., 2021, table 1). Examples are
drawn from the training set three times, with equally many of each class. The development set is used only for the
scores. Results are stored in `results/prompting.json`.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import numpy as np

import lmzoo
from benchmarks.common import SHARED, console, save
from benchmarks.quality import DATASETS, sample

CHOICES = ("terrible", "great")  # labels 0 and 1
UNCONDITIONAL = "It was"
EXAMPLE_COUNTS = (4,)
SEEDS = (0, 1, 2)
SENTENCES = 300  # of the development set


def make_prompts(sentences: list[str]) -> list[str]:
    """Return a prompt for each sentence."""
    return [f"{sentence.strip()} {UNCONDITIONAL}" for sentence in sentences]


def draw_examples(texts: list[str], labels: list[int], count: int, seed: int) -> list[tuple[str, str]]:
    """Draw labeled examples in a random order, with equally many of each class."""
    order = np.random.default_rng(seed).permutation(len(texts)).tolist()
    chosen = [i for label in (0, 1) for i in [i for i in order if labels[i] == label][: count // 2]]
    chosen.sort(key=order.index)
    return [
        (prompt, CHOICES[labels[i]]) for i, prompt in zip(chosen, make_prompts([texts[i] for i in chosen]), strict=True)
    ]


def measure(model: Any, prompts: list[str], labels: list[int], **settings: Any) -> dict[str, float]:
    """Return the accuracy, and the fraction of prompts that are classified as positive."""
    answers = [answer["label"] == CHOICES[1] for answer in model.classify(prompts, CHOICES, **settings)]
    return {"accuracy": float(np.mean(np.equal(answers, labels))), "positive": float(np.mean(answers))}


def main() -> None:
    """Measure, print and store the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data")
    parser.add_argument("--preset", default="gpt2_nano_en")
    options = parser.parse_args()
    (texts, train_labels), dev = DATASETS["sst2"].read(options.data)
    sentences, labels = sample(dev, SENTENCES)
    model = lmzoo.models.CausalLM.from_preset(options.preset)
    prompts = make_prompts(sentences)
    majority = max(np.mean(labels), 1 - np.mean(labels))
    results: dict[str, Any] = {"majority": float(majority)}
    for name, settings in (("sum", {}), ("unconditional", {"unconditional_prompt": UNCONDITIONAL})):
        results[f"0 examples, {name}"] = [measure(model, prompts, labels, **settings)]
        for count in EXAMPLE_COUNTS:
            runs = [
                measure(model, prompts, labels, examples=draw_examples(texts, train_labels, count, seed), **settings)
                for seed in SEEDS
            ]
            results[f"{count} examples, {name}"] = runs
    for name, runs in results.items():
        if isinstance(runs, list):
            means = {key: statistics.mean(run[key] for run in runs) for key in runs[0]}
            console.print(f"{name:28} accuracy {means['accuracy']:.3f}  positive {means['positive']:.3f}")
    save("prompting", {"preset": options.preset, "sentences": len(labels)}, scores=results)


if __name__ == "__main__":
    main()
