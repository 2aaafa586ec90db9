"""What a preset gives: masked accuracy, pseudo-perplexity and fine-tuning against random weights.

    python -m benchmarks.preset_card presets/bert/bert_nano_en_uncased --data DATA --log runs/bert_nano/log.csv

Writes `benchmarks/results/card_<preset>.json` and the figures that the preset's README quotes. Fine-tuning: SST-2, 300
and 3,000 training sentences, three seeds, the same search over learning rates for both starting points (chosen by the
mean accuracy on 500 other training sentences), accuracy on the 872 sentences of the development set.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from pathlib import Path
from typing import Any

import keras
import matplotlib
import numpy as np
from rich.progress import track
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline

import lmzoo
from examples.pretrain_nano import documents, rows

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SEEDS = (0, 1, 2)
EPOCHS = {300: 16, 3000: 5}
RATES = {300: (5e-4, 1e-3, 2e-3), 3000: (1e-3, 2e-3)}
VALIDATION = 500


def read_sst2(path: Path) -> tuple[list[str], np.ndarray]:
    """Sentences and labels of one SST-2 file: a digit, a space, the sentence."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line[2:] for line in lines], np.array([int(line[0]) for line in lines])


def fine_tune(
    preset: Path, pretrained: bool, rate: float, seed: int, train: Any, validation: Any, test: Any
) -> tuple[float, float]:
    """Accuracy on validation and test sentences after training on `train`."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    classifier = lmzoo.models.TextClassifier.from_preset(preset, num_classes=2, pooling="mean", load_weights=pretrained)
    classifier.compile(optimizer=lmzoo.training.AdamW(rate, global_clipnorm=1.0))
    classifier.fit(*train, epochs=EPOCHS[len(train[0])], batch_size=32, seed=seed, verbose=0)
    return tuple(float(np.mean(classifier.predict(x, verbose=0).argmax(-1) == y)) for x, y in (validation, test))


def compare(preset: Path, data: Path) -> list[dict[str, Any]]:
    """Fine-tuning results: a row for each size and starting point."""
    texts, labels = read_sst2(data / "sst2" / "stsa.binary.train")
    test = read_sst2(data / "sst2" / "stsa.binary.dev")
    table = []
    for size in EPOCHS:
        splits = []
        for seed in SEEDS:
            order = np.random.default_rng(seed).permutation(len(texts))
            parts = order[:size], order[size : size + VALIDATION]
            splits.append([([texts[i] for i in part], labels[part]) for part in parts])
        words = [
            make_pipeline(
                TfidfVectorizer(ngram_range=(1, 2)),
                LogisticRegressionCV(
                    Cs=5, max_iter=1000, use_legacy_attributes=False, scoring="accuracy", l1_ratios=(0,)
                ),
            )
            .fit(*train)
            .score(*test)
            for train, _ in splits
        ]
        table.append({"size": size, "model": "bag of words", "rate": None, "accuracy": words})
        for name, pretrained in (("random weights", False), ("pre-trained", True)):
            results = {
                rate: [
                    fine_tune(preset, pretrained, rate, seed, *splits[seed], test)
                    for seed in track(SEEDS, f"{size} sentences, {name}, rate {rate:g}")
                ]
                for rate in RATES[size]
            }
            best = max(RATES[size], key=lambda rate: statistics.mean(v for v, _ in results[rate]))
            table.append({"size": size, "model": name, "rate": best, "accuracy": [t for _, t in results[best]]})
            print(table[-1], flush=True)
    return table


def heldout(preset: Path, data: Path, sentences: int) -> dict[str, float]:
    """Masked accuracy and loss on held-out rows, and pseudo-perplexity on held-out sentences."""
    model = lmzoo.models.MaskedLM.from_preset(preset)
    texts = list(documents(data / "pretrain", "*-dev*"))
    packed = rows(texts, model.preprocessor.tokenizer)[:1024]
    loss, accuracy = model.evaluate(packed, batch_size=32, verbose=0)
    lines = [line for text in texts for line in text.split("\n") if 60 <= len(line) <= 200]
    chosen = np.random.default_rng(0).choice(len(lines), sentences, replace=False)
    return {
        "masked_loss": loss,
        "masked_accuracy": accuracy,
        "pseudo_perplexity": model.pseudo_perplexity([lines[i] for i in chosen], batch_size=64),
        "pseudo_perplexity_sentences": sentences,
    }


def plot_loss(log: Path, target: Path, tokens_per_round: float) -> None:
    """Draws the loss over the tokens seen."""
    with open(log, newline="") as file:
        logged = [row for row in csv.DictReader(file) if row["epoch"] != "epoch"]
    seen = [(int(row["epoch"]) + 1) * tokens_per_round / 1e6 for row in logged]
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(seen, [float(row["loss"]) for row in logged], label="training")
    checked = [(s, float(row["val_loss"])) for s, row in zip(seen, logged, strict=True) if row["val_loss"] != "NA"]
    if checked:
        axes.plot(*zip(*checked, strict=True), "o", label="held out")
    axes.set(xlabel="tokens seen (millions)", ylabel="masked-LM loss (nats)", title=target.parent.name)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(target, dpi=110)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder with `pretrain/` and `sst2/`")
    parser.add_argument("--log", type=Path, help="log.csv of the training, for the loss curve")
    parser.add_argument("--tokens-per-round", type=float, default=442_700)
    parser.add_argument("--sentences", type=int, default=200, help="for the pseudo-perplexity")
    args = parser.parse_args()
    if args.log:
        plot_loss(args.log, args.preset / "loss.png", args.tokens_per_round)
    report = {"heldout": heldout(args.preset, args.data, args.sentences)}
    print(report["heldout"], flush=True)
    report["fine_tuning"] = compare(args.preset, args.data)
    target = Path(__file__).parent / "results" / f"card_{args.preset.name}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(report, indent=2) + "\n")
    for row in report["fine_tuning"]:
        mean, spread = statistics.mean(row["accuracy"]), statistics.stdev(row["accuracy"])
        print(
            f"{row['size']:5d} sentences  {row['model']:16s} {100 * mean:.1f} ± {100 * spread:.1f}  rate {row['rate']}"
        )


if __name__ == "__main__":
    main()
