"""A fine-tuning epoch from the strings of SST-2: sentences per second, and the accuracy afterwards.

All peers train a 4 x 256 BERT with random weights, BERT's vocabulary of 30,522 tokens, batches of 32, and AdamW at the
same constant rate. The first round includes tracing and compiling; later rounds continue with the same model and start
from strings again.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import JAX, SHARED, TENSORFLOW, TORCH, interleave, ready, save, show
from benchmarks.models import SIZES, keras_hub_classifier, lmzoo_classifier, transformers_classifier

PEERS = {
    "lmzoo-tf": TENSORFLOW,
    "lmzoo-tf-jit": TENSORFLOW,
    "lmzoo-jax": JAX,
    "transformers-grouped": TORCH,
    "transformers-dynamic": TORCH,
    "kerashub-tf-128": TENSORFLOW,
    "kerashub-tf-default": TENSORFLOW,
}
MEASURES = ("seconds per 1000 sentences", "sentences per second", "dev accuracy")
VOCABULARY = SHARED / "data/tokenizers/bert-base-uncased/vocab.txt"
SENTENCES = SHARED / "data/sst2"


def read(part: str, limit: int | None = None) -> tuple[list[str], np.ndarray]:
    """Return sentences and labels of "train" or "dev"."""
    lines = (SENTENCES / f"stsa.binary.{part}").read_text("utf-8").splitlines()
    random.Random(3).shuffle(lines)
    lines = lines[:limit]
    return [line[2:] for line in lines], np.array([int(line[0]) for line in lines], "int32")


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the model; a round is one epoch, whose time does not include measuring the accuracy."""
    vocabulary = VOCABULARY.read_text("utf-8").split("\n")[:-1]
    texts, labels = read("train", options["sentences"])
    dev, dev_labels = read("dev", options["dev"])
    build = {"l": _build_lmzoo, "k": _build_keras_hub, "t": _build_transformers}[peer[0]]
    fit, predict = build(peer, options, vocabulary, texts, labels)

    def round() -> dict[str, float]:
        start = time.perf_counter()
        fit()
        seconds = time.perf_counter() - start
        accuracy = float(np.mean(np.argmax(predict(dev), axis=-1) == dev_labels))
        count = len(texts)
        return dict(zip(MEASURES, (1000 * seconds / count, count / seconds, accuracy), strict=True))

    return round


def _build_lmzoo(peer: str, options: Any, vocabulary: Any, texts: Any, labels: Any) -> tuple[Callable, Callable]:
    # lmzoo is imported before Keras, as its pages advise, because it chooses TensorFlow's kernels.
    model = lmzoo_classifier(options["size"], len(vocabulary), vocabulary=vocabulary)

    import keras

    from lmzoo.training import AdamW

    model.compile(optimizer=AdamW(options["learning_rate"]), jit_compile=peer.endswith("jit") or "auto")
    constant = keras.callbacks.LearningRateScheduler(
        lambda epoch: options["learning_rate"]
    )  # without warm-up and decay
    fit = lambda: model.fit(texts, labels, batch_size=options["batch_size"], callbacks=[constant], verbose=0)  # noqa: E731
    return fit, lambda dev: model.predict(dev, verbose=0)


def _build_keras_hub(peer: str, options: Any, vocabulary: Any, texts: Any, labels: Any) -> tuple[Callable, Callable]:
    import keras

    length = None if peer.endswith("default") else int(peer.rsplit("-", 1)[1])
    model = keras_hub_classifier(options["size"], len(vocabulary), vocabulary=vocabulary, sequence_length=length)
    model.compile(optimizer=keras.optimizers.AdamW(options["learning_rate"], weight_decay=0.01))
    fit = lambda: model.fit(texts, labels, batch_size=options["batch_size"], verbose=0)  # noqa: E731
    return fit, lambda dev: model.predict(dev, verbose=0)


def _build_transformers(peer: str, options: Any, vocabulary: Any, texts: Any, labels: Any) -> tuple[Callable, Callable]:
    import torch
    from transformers import BertTokenizerFast
    from transformers.trainer_pt_utils import LengthGroupedSampler

    tokenizer = BertTokenizerFast(vocab={token: i for i, token in enumerate(vocabulary)}, do_lower_case=True)
    model = transformers_classifier(options["size"], len(vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options["learning_rate"], weight_decay=0.01, fused=True)
    size = options["batch_size"]

    def fit() -> None:
        model.train()
        sequences = tokenizer(texts, truncation=True, max_length=512)["input_ids"]
        if peer.endswith("grouped"):
            order = list(LengthGroupedSampler(size, lengths=list(map(len, sequences))))
        else:
            order = torch.randperm(len(sequences)).tolist()
        for start in range(0, len(order), size):
            index = order[start : start + size]
            batch = tokenizer.pad({"input_ids": [sequences[i] for i in index]}, return_tensors="pt")
            loss = model(**batch, labels=torch.tensor(labels[index], dtype=torch.long)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def predict(dev: list[str]) -> np.ndarray:
        model.eval()
        with torch.inference_mode():
            parts = [
                model(**tokenizer(dev[i : i + size], padding=True, truncation=True, return_tensors="pt")).logits
                for i in range(0, len(dev), size)
            ]
        return torch.cat(parts).numpy()

    return fit, predict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--sentences", type=int, default=2048, help="training sentences; there are 6,920")
    parser.add_argument("--dev", type=int, default=872, help="sentences to measure the accuracy on")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--rounds", type=int, default=3, help="epochs, the first of them cold")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--name", default="finetune_epoch", help="name of the result file")
    options = vars(parser.parse_args())
    if not ready(VOCABULARY, SENTENCES):
        return
    chosen = {peer: PEERS[peer] for peer in PEERS if peer in options["peers"]}
    rows = interleave("finetune_epoch", chosen, options, options["rounds"])
    title = f"{options['sentences']} SST-2 sentences, {options['size']}"
    cold = show(f"{title}, first epoch", {peer: r[:1] for peer, r in rows.items()}, MEASURES)
    warm = show(f"{title}, later epochs", rows, MEASURES, skip=1) if options["rounds"] > 1 else {}
    save(options["name"], options, rows=rows, summary={"first epoch": cold, "later epochs": warm})


if __name__ == "__main__":
    main()
