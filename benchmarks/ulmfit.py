"""ULMFiT (Howard & Ruder, 2018) on `lstm_nano_en`, against plain fine-tuning with the same labels.

    python -m benchmarks.ulmfit --data DATA --work FOLDER [--only SET ...] [--labels N ...] [--seeds N]

The datasets are SST-2 and TREC, with 100, 1,000 and all labels. "plain" fine-tunes the preset with the defaults of
`TextClassifier`. "plain, after the texts" does the same after the language model, with AWD-LSTM's dropouts, has read
the training texts without labels. "ULMFiT" adds learning rates by layer, slanted triangles, gradual unfreezing and
concatenated pooling. The learning rate is chosen on held-out training examples, with the first seed. The development
set is used only for the scores. Results are stored in `results/ulmfit.json`; a stopped run continues.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import keras
from rich.table import Table

import lmzoo
from benchmarks.common import RESULTS, SHARED, console, save
from benchmarks.quality import DATASETS, SEEDS, find_best_rate, sample, select_best_rate, split, spread
from lmzoo.training import AdamW, GradualUnfreezing

PRESET = "lstm_nano_en"
SETS = ("sst2", "trec")
LABELS = (100, 1000, 0)  # 0 for all
METHODS = ("plain", "plain, after the texts", "ULMFiT")
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
LENGTH = 64  # tokens in a sequence: the texts are short
LANGUAGE_MODEL_RATE = 1e-3
CLASSIFIER_EPOCHS = {100: 20, 1000: 10, 0: 5}  # number of epochs by number of labels
# Merity et al. (2018), at 0.4 of the paper's rates, as fastai sets them for small datasets.
DROPOUTS = {
    "word_dropout": 0.04,
    "input_dropout": 0.16,
    "hidden_dropout": 0.1,
    "weight_dropout": 0.2,
    "dropout": 0.16,
    "locked_dropout": True,
}
SLANTED = {"layer_decay": 1 / 2.6, "schedule": "slanted_triangular", "global_clipnorm": 1.0}


def adapt(texts: list[str], folder: Path, epochs: int) -> None:
    """Train the language model on the texts, and save it as a preset."""
    if folder.exists():
        return
    keras.utils.set_random_seed(0)
    model = lmzoo.models.CausalLM.from_preset(PRESET, sequence_length=LENGTH).copy_with(**DROPOUTS)
    model.compile(AdamW(LANGUAGE_MODEL_RATE, **SLANTED))
    model.fit(texts, epochs=epochs, verbose=0)
    model.save_to_preset(folder)


def run(method: str, adapted: Path, num_classes: int, labels: int, rate: float, seed: int, parts: list) -> dict:
    """Train on the first part, and return the accuracy on the validation set and the development set."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    train, validation, dev = parts
    preset = PRESET if method == "plain" else str(adapted)
    is_ulmfit = method == "ULMFiT"
    arguments: dict[str, Any] = {"sequence_length": LENGTH, "pooling": "mean"}
    if is_ulmfit:
        arguments["pooling"] = ["lasttoken", "max", "mean"]
    task = lmzoo.models.TextClassifier.from_preset(preset, num_classes=num_classes, **arguments)
    task.compile(AdamW(rate, **(SLANTED if is_ulmfit else {"global_clipnorm": 1.0})))
    callbacks = [GradualUnfreezing()] if is_ulmfit else []
    start = time.perf_counter()
    epochs = CLASSIFIER_EPOCHS[labels]
    task.fit(*train, epochs=epochs, batch_size=16 if labels else 32, seed=seed, callbacks=callbacks, verbose=0)
    seconds = time.perf_counter() - start
    checked, scored = (task.evaluate(*part, return_dict=True, verbose=0)["accuracy"] for part in (validation, dev))
    return {"rate": rate, "seed": seed, "validation": checked, "accuracy": scored, "fit seconds": seconds}


def main() -> None:
    """Do the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="parent directory of the datasets")
    parser.add_argument("--work", type=Path, required=True, help="directory for the adapted presets")
    parser.add_argument("--only", nargs="+", choices=SETS, default=SETS, metavar="SET")
    parser.add_argument("--labels", nargs="+", type=int, choices=LABELS, default=LABELS, help="0 for all")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--rates", nargs="+", type=float, default=RATES)
    parser.add_argument("--epochs", type=int, default=3, help="of the language model")
    options = parser.parse_args()
    path = RESULTS / "ulmfit.json"
    rows = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else {}
    settings = {"rates": options.rates, "epochs": options.epochs, "backend": keras.backend.backend()}
    for name in options.only:
        train, dev = DATASETS[name].read(options.data)
        parts = [*split(train), dev]
        adapted = options.work / name
        adapt(list(parts[0][0]), adapted, options.epochs)
        for labels in options.labels:
            labeled = [sample(parts[0], labels or None), *parts[1:]]
            for method in METHODS:
                runs = rows.setdefault(f"{name} {labels} {method}", [])
                plan = [(rate, SEEDS[0]) for rate in options.rates]
                while plan:
                    rate, seed = plan.pop(0)
                    if not any((row["rate"], row["seed"]) == (rate, seed) for row in runs):
                        runs.append(run(method, adapted, max(train[1]) + 1, labels, rate, seed, labeled))
                        save("ulmfit", settings, rows=rows)
                    if not plan and seed == SEEDS[0]:
                        plan = [(find_best_rate(runs), seed) for seed in SEEDS[1 : options.seeds]]
    table = Table("dataset", "labels", *METHODS)
    for name in SETS:
        for labels in LABELS:
            runs_by_method = [select_best_rate(rows.get(f"{name} {labels} {method}", [])) for method in METHODS]
            table.add_row(
                DATASETS[name].title,
                f"{labels:,}" if labels else "all",
                *(spread(r, "accuracy") for r in runs_by_method),
            )
    console.print(table)


if __name__ == "__main__":
    main()
