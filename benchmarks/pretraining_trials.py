"""Small pre-training runs that choose the mixture of texts and the masking for the shipped presets.

Each trial trains a BERT of 4 × 128 on 8 million tokens from the first file of each source, with
`lmzoo.pretraining.pretrain`. All trials have the vocabulary of the first one, so that losses can be compared. A trial
reports the loss on the held-out text of each source, and the accuracy of a linear classifier for SST-2 on the means of
the last layer, with all training sentences and with 300 (five draws). Finished trials are not run again, and a stopped
trial continues.

    python -m benchmarks.pretraining_trials --data DATA --work FOLDER [TRIAL ...]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from rich.table import Table
from sklearn.preprocessing import StandardScaler

import lmzoo
from benchmarks.common import RESULTS, SHARED, console, save
from benchmarks.quality import DATASETS, fit_logistic_regression
from lmzoo.pretraining import Recipe, pretrain

# Millions of words of each source, rounded: weights of a mixture in which every text is read equally often.
MODERN = {
    "podcasts": 10.0,
    "selfdialogues": 3.6,
    "dialogues": 2.9,
    "meetings": 0.9,
    "tatoeba": 1.3,
    "commonvoice": 0.4,
    "stackexchange": 2.5,
    "complaints": 1.2,
    "pressreleases": 8.5,
    "wikinews": 0.2,
    "govweb": 2.1,
    "healthqa": 2.5,
    "wikipedia": 8.1,
    "wikiculture": 4.8,
    "masc": 0.4,
    "stories": 0.1,
    "recipes": 0.1,
}
OLD = {"books": 19.0, "expository": 10.0}
OPINIONS = ("selfdialogues", "dialogues", "stackexchange", "wikiculture", "masc", "stories", "complaints")
RECIPE = Recipe(tokens=8_000_000, sequence_length=128, positions=128, objective="none")


def multiply_weights(weights: dict[str, float], names: tuple[str, ...], factor: float) -> dict[str, float]:
    """Multiply the weights of some texts by a factor."""
    return {
        name: weight * (factor if name in names else 1)
        for name, weight in weights.items()
        if factor or name not in names
    }


# Weights of the texts, and changed fields of the recipe.
TRIALS: dict[str, tuple[dict[str, float], dict[str, Any]]] = {
    "modern and old": ({**MODERN, **OLD}, {}),
    "modern": (MODERN, {}),
    "old": (OLD, {}),
    "opinions four times": (multiply_weights(MODERN, OPINIONS, 4), {}),
    "modern, whole words": (MODERN, {"whole_word": True}),
    "modern, 30% masked": (MODERN, {"mask_probability": 0.3}),
    "without press and government": (multiply_weights(MODERN, ("pressreleases", "govweb"), 0), {}),
}


def list_files(data: Path, weights: dict[str, float], part: str) -> dict[str, float]:
    """Return patterns of the files of some sources, with their weights."""
    folders = {name: data / ("pretrain" if name in OLD else "pretrain_modern") for name in weights}
    return {str(folders[name] / f"{name}-{part}*.txt.xz"): weight for name, weight in weights.items()}


def probe(preset: Path, data: Path) -> dict[str, float]:
    """Return the accuracies of linear classifiers for SST-2 on the mean vectors of the last layer."""
    (sentences, labels), (tests, right) = DATASETS["sst2"].read(data)
    embedder = lmzoo.models.TextEmbedder.from_preset(str(preset), normalize=False)
    scaler = StandardScaler().fit(vectors := embedder.embed(sentences))  # (n, H)
    train, test = scaler.transform(vectors), scaler.transform(embedder.embed(tests))
    few = []
    for seed in range(5):
        chosen = np.random.default_rng(seed).permutation(len(sentences))[:300]
        few.append(fit_logistic_regression(train[chosen], np.array(labels)[chosen], 0.01).score(test, right))
    return {"SST-2": fit_logistic_regression(train, labels, 0.1).score(test, right), "SST-2, 300": statistics.mean(few)}


def train(name: str, data: Path, work: Path) -> dict[str, Any]:
    """Train a model, unless it is already trained, and return its losses on held-out text.

    All trials share the vocabulary and the tokenized texts.
    """
    weights, changes = TRIALS[name]
    recipe, folder = dataclasses.replace(RECIPE, **changes), work / name.replace(" ", "_").replace(",", "")
    shared, run_folder, losses = work / "texts", folder / "run", folder / "losses.json"
    if losses.exists():
        return json.loads(losses.read_text())
    if shared.exists() and not run_folder.exists():
        shutil.copytree(shared, run_folder, copy_function=os.link)
    start = time.perf_counter()
    scores = pretrain(
        list_files(data, weights, "train-00"),
        folder / "preset",
        recipe,
        list_files(data, {**MODERN, **OLD}, "dev"),
        run_folder,
        overwrite=True,
    )
    if not shared.exists():
        for part in (*run_folder.glob("train_*"), *run_folder.glob("held_out_*"), run_folder / "tokenizer"):
            shutil.copytree(part, shared / part.name, copy_function=os.link)
    losses.write_text(json.dumps({**scores, "seconds": time.perf_counter() - start}))
    return json.loads(losses.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=f"of {', '.join(TRIALS)}; all by default")
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="parent directory of the datasets")
    parser.add_argument("--work", type=Path, required=True, help="directory for the runs")
    parser.add_argument("--train-only", action="store_true", help="leave the classifiers to another call")
    args = parser.parse_args()
    if args.train_only:
        for name in args.trials or TRIALS:
            train(name, args.data, args.work)
        return
    file = RESULTS / "pretraining_trials.json"
    rows = json.loads(file.read_text())["rows"] if file.exists() else {}
    for name in args.trials or TRIALS:
        if name not in rows:
            console.rule(name)
            keras.utils.set_random_seed(0)
            losses = train(name, args.data, args.work)
            rows[name] = losses | probe(args.work / name.replace(" ", "_").replace(",", "") / "preset", args.data)
            save("pretraining_trials", {"recipe": dataclasses.asdict(RECIPE)}, rows=rows)
    kinds = [key for key in next(iter(rows.values())) if key.startswith("loss_")]
    table = Table("trial", "SST-2", "SST-2, 300", "loss", *(kind.removeprefix("loss_") for kind in kinds))
    for name, row in rows.items():
        table.add_row(name, *(f"{row[key]:.3f}" for key in ("SST-2", "SST-2, 300", "loss", *kinds)))
    console.print(table)


if __name__ == "__main__":
    main()
