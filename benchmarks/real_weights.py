"""Quality and speed with published weights: all-MiniLM-L6-v2, which `make minilm` downloads.

`--weights mpnet` selects all-mpnet-base-v2, which `make mpnet` downloads.

"similarity" embeds the texts of STS-B's development set, and gives Spearman's correlation of the cosines with the
annotated similarities, times 100, and the seconds for all texts. Each peer embeds 64 texts before the first round, so
that its code is compiled.

"classifier" fine-tunes on the first sentences of SST-2 (shuffled, the same for all peers), from the stored weights: 3
epochs in batches of 32, AdamW with a peak rate of 1e-4, warm-up over a tenth of the steps, linear decay, gradients
clipped to norm 1. A round is a new classifier with the next seed. Its seconds include `fit` with tracing, but neither
loading nor measuring the accuracy. transformers groups texts by length, and pads to the longest of a batch.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import JAX, ROOT, SHARED, TENSORFLOW, TORCH, console, interleave, ready, save, show, time_call
from benchmarks.finetune_epoch import SENTENCES, read

PEERS = {
    "similarity": {"lmzoo-tf": TENSORFLOW, "lmzoo-jax": JAX, "sentence-transformers": TORCH},
    "classifier": {"lmzoo-tf": TENSORFLOW, "lmzoo-jax": JAX, "transformers-grouped": TORCH},
}
MEASURES = {"similarity": ("seconds", "Spearman"), "classifier": ("fit seconds", "dev accuracy")}
MODELS = {"minilm": ROOT / "real_weights/all-minilm-l6-v2", "mpnet": ROOT / "real_weights/all-mpnet-base-v2"}
PAIRS = SHARED / "data/stsb/stsb-en-dev.decontam.csv"
LEARNING_RATES = {"minilm": 1e-4, "mpnet": 5e-5}  # lmzoo's defaults for widths of 384 and 768

Texts = list[str]


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Read the data and load the embedder; each round loads a new classifier."""
    return (_prepare_similarity if options["task"] == "similarity" else _prepare_classifier)(peer, options)


# === Similarity ===


def _prepare_similarity(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    from scipy.stats import spearmanr

    with open(PAIRS, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[: options["pairs"]]
    texts = [text for row in rows for text in row[:2]]
    folder = MODELS[options["weights"]]
    embed = _load_lmzoo_embedder(folder) if peer.startswith("lmzoo") else _load_sentence_transformer(folder)
    embed(texts[:64])

    def round() -> dict[str, float]:
        results = []
        seconds = time_call(lambda: results.append(embed(texts)))
        (vectors,) = results
        cosines = (vectors[::2] * vectors[1::2]).sum(axis=1)
        spearman = spearmanr(cosines, [float(row[2]) for row in rows]).statistic
        return {"seconds": seconds, "Spearman": 100 * float(spearman)}

    return round


def _load_lmzoo_embedder(folder: Path) -> Callable[[Texts], np.ndarray]:
    import lmzoo

    return lmzoo.models.TextEmbedder.from_preset(folder).embed


def _load_sentence_transformer(folder: Path) -> Callable[[Texts], np.ndarray]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: model.encode(texts, batch_size=32, normalize_embeddings=True)


# === Classifier ===


def _prepare_classifier(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    texts, labels = read("train", options["sentences"])
    dev, dev_labels = read("dev", options["dev"])
    start = _build_lmzoo_classifier if peer.startswith("lmzoo") else _build_transformers_classifier
    seeds = itertools.count(1)

    def round() -> dict[str, float]:
        fit, predict = start(next(seeds), options, texts, labels)
        seconds = time_call(fit)
        accuracy = float(np.mean(np.argmax(predict(dev), axis=-1) == dev_labels))
        return {"fit seconds": seconds, "dev accuracy": 100 * accuracy}

    return round


def _build_lmzoo_classifier(seed: int, options: dict[str, Any], texts: Texts, labels: np.ndarray) -> tuple:
    import keras

    import lmzoo

    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    model = lmzoo.models.TextClassifier.from_preset(MODELS[options["weights"]], num_classes=2)
    rate = float(model.optimizer.learning_rate)
    expected = LEARNING_RATES[options["weights"]]
    if not np.isclose(rate, expected):
        raise ValueError(f"The default learning rate is {rate:g}, and that of the peer is {expected:g}.")
    fit = lambda: model.fit(texts, labels, epochs=options["epochs"], batch_size=32, seed=seed, verbose=0)  # noqa: E731
    return fit, lambda dev: model.predict(dev, verbose=0)


def _build_transformers_classifier(seed: int, options: dict[str, Any], texts: Texts, labels: np.ndarray) -> tuple:
    import torch
    import transformers
    from transformers.trainer_pt_utils import LengthGroupedSampler

    torch.manual_seed(seed)
    folder = MODELS[options["weights"]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    rate = LEARNING_RATES[options["weights"]]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=True)
    steps = options["epochs"] * -(-len(texts) // 32)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)

    def fit() -> None:
        model.train()
        sequences = tokenizer(texts, truncation=True, max_length=512)["input_ids"]
        for _ in range(options["epochs"]):
            order = list(LengthGroupedSampler(32, lengths=list(map(len, sequences))))
            for start in range(0, len(order), 32):
                index = order[start : start + 32]
                batch = tokenizer.pad({"input_ids": [sequences[i] for i in index]}, return_tensors="pt")
                model(**batch, labels=torch.tensor(labels[index], dtype=torch.long)).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)

    @torch.inference_mode()
    def predict(dev: Texts) -> np.ndarray:
        model.eval()
        parts = [
            model(**tokenizer(dev[i : i + 32], padding=True, truncation=True, return_tensors="pt")).logits
            for i in range(0, len(dev), 32)
        ]
        return torch.cat(parts).numpy()

    return fit, predict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", choices=MODELS, default="minilm", help="which model")
    parser.add_argument("--tasks", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--pairs", type=int, default=1357, help="pairs of STS-B's development set")
    parser.add_argument("--sentences", type=int, default=2000, help="of SST-2, to train on; there are 6,920")
    parser.add_argument("--dev", type=int, default=872, help="sentences to measure the accuracy on")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3, help="each trains a classifier with another seed")
    every = {**PEERS["similarity"], **PEERS["classifier"]}
    parser.add_argument("--peers", nargs="+", choices=every, default=list(every))
    parser.add_argument("--name", default="real_weights", help="name of the result file")
    options = vars(parser.parse_args())
    folder = MODELS[options["weights"]]
    if not folder.is_dir():
        console.print(f"[yellow]skipped:[/] {folder} does not exist: run `make {options['weights']}`")
        return
    if not ready(PAIRS, SENTENCES):
        return
    results: dict[str, Any] = {"rows": {}, "summary": {}}
    for task in options["tasks"]:
        peers = {peer: PEERS[task][peer] for peer in PEERS[task] if peer in options["peers"]}
        rows = interleave("real_weights", peers, {**options, "task": task}, options["rounds"])
        results["rows"][task] = rows
        results["summary"][task] = show(task, rows, MEASURES[task])
        if task == "classifier":
            _show_spread(rows)
    save(options["name"], options, **results)


def _show_spread(rows: dict[str, list[dict[str, float]]]) -> None:
    for peer, rounds in rows.items():
        accuracies = [row["dev accuracy"] for row in rounds]
        spread = f" ± {statistics.stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
        console.print(f"{peer}: {statistics.mean(accuracies):.1f}{spread} on dev, {len(accuracies)} seeds")


if __name__ == "__main__":
    main()
