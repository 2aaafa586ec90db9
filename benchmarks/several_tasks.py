"""TREC, SST-2 and MNLI trained together on one backbone (MT-DNN; Liu et al., 2019), against each task alone.

    python -m benchmarks.several_tasks --data DATA [--preset NAME] [--examples N] [--seeds N] [--temperatures T ...]

All runs have the same learning rate, batch size and number of epochs. Only the development part of MNLI is available:
its pairs are split by premise into training and development pairs. The development sets are used only for the scores.
Results are stored in `results/several_tasks.json`; a stopped run continues.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import keras
from rich.table import Table

import lmzoo
from benchmarks.common import RESULTS, SHARED, console, save
from benchmarks.quality import DATASETS, SEEDS, Examples, sample, spread, take
from lmzoo.data.readers import read_table
from lmzoo.training import AdamW, fit_together

RATE = 1e-3
BATCH_SIZE = 32
LENGTH = 96  # tokens in a sequence
KINDS = ("entailment", "neutral", "contradiction")


def read_mnli(folder: Path) -> tuple[Examples, Examples]:
    """Read the pairs of MNLI's development part; a tenth of the premises is for testing."""
    path = folder / "nli/mnli_dev.open.csv.gz"
    examples = read_table(path, text="premise", pair="hypothesis", label="label", label_type=KINDS.index)
    tests = [hashlib.sha256(premise.encode()).digest()[0] < 26 for premise in examples[0][0]]
    parts = [[i for i, is_test in enumerate(tests) if is_test == part] for part in (False, True)]
    return take(examples, parts[0]), take(examples, parts[1])


READ = {"trec": DATASETS["trec"].read, "sst2": DATASETS["sst2"].read, "mnli": read_mnli}


def build(preset: str, parts: dict[str, tuple[Examples, Examples]]) -> dict[str, Any]:
    """Return a classifier for each dataset, all on one backbone."""
    first: Any = None
    tasks = {}
    for name, (train, _) in parts.items():
        arguments = {"num_classes": max(train[1]) + 1, "pooling": "mean"}
        if first is None:
            first = lmzoo.models.TextClassifier.from_preset(preset, sequence_length=LENGTH, **arguments)
            tasks[name] = first
        else:
            tasks[name] = lmzoo.models.TextClassifier(first.backbone, first.preprocessor, **arguments)
    return tasks


def run(preset: str, parts: dict[str, tuple[Examples, Examples]], temperature: float, epochs: int, seed: int) -> dict:
    """Train on all training sets together, and return the accuracies on the development sets."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    tasks = build(preset, parts)
    start = time.perf_counter()
    fit_together(
        {name: (task, *parts[name][0]) for name, task in tasks.items()},
        epochs=epochs,
        batch_size=BATCH_SIZE,
        temperature=temperature,
        optimizer=AdamW(RATE, global_clipnorm=1.0),
        seed=seed,
        verbose=0,
    )
    seconds = time.perf_counter() - start
    scores = {name: task.evaluate(*parts[name][1], return_dict=True, verbose=0) for name, task in tasks.items()}
    return {"seed": seed, **{name: score["accuracy"] for name, score in scores.items()}, "fit seconds": seconds}


def main() -> None:
    """Do the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="parent directory of the datasets")
    parser.add_argument("--preset", default="bert_nano_en_uncased")
    parser.add_argument("--examples", type=int, help="training examples of each dataset; by default all")
    parser.add_argument("--temperatures", nargs="+", type=float, default=(1.0, 2.0))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    options = parser.parse_args()
    path = RESULTS / "several_tasks.json"
    rows = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else {}
    settings = {"preset": options.preset, "rate": RATE, "epochs": options.epochs, "backend": keras.backend.backend()}
    parts = {}
    for name, read in READ.items():
        train, dev = read(options.data)
        parts[name] = sample(train, options.examples), dev
    size = options.examples or "all"
    runs = {f"{size} alone {name}": ({name: parts[name]}, 1.0) for name in READ}
    runs |= {f"{size} together, temperature {t:g}": (parts, t) for t in options.temperatures}
    for key, (chosen, temperature) in runs.items():
        finished = rows.setdefault(key, [])
        for seed in SEEDS[: options.seeds]:
            if not any(row["seed"] == seed for row in finished):
                finished.append(run(options.preset, chosen, temperature, options.epochs, seed))
                save("several_tasks", settings, rows=rows)
    table = Table("training", *READ)
    table.add_row("alone", *(spread(rows[f"{size} alone {name}"], name) for name in READ))
    for key in runs:
        if "together" in key:
            table.add_row(key, *(spread(rows[key], name) for name in READ))
    console.print(table)


if __name__ == "__main__":
    main()
