"""A training step of a BERT classifier on one GPU, and the fraction of the GPU's peak that it reaches.

    python -m benchmarks.gpu_step [--cases nano:128:256 base:128:256 base:512:64 large:512:32] [--precision bf16 fp32]

A case is a size, the tokens in a sequence and the sequences in a batch. Every peer has a process of its own and runs
the step that its library compiles by default (transformers: `torch.compile`, fused attention); the peers start together
and then take turns. Batches have no padding. "First fit" is the time of the first `fit` on two batches, which compiles;
for transformers, of two steps. Results are written after each case. FLOPs count the matrix products of the forward and
backward pass: 6 per token for each weight of the blocks, and 12·T·H per token for the attention of each layer. The
peaks are those of an H100 or H200 for dense bfloat16 and, for fp32, TF32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import JAX, TORCH, Rows, Worker, console, save, show, time_call
from benchmarks.models import SIZES, keras_hub_classifier, lmzoo_classifier, transformers_classifier
from benchmarks.steps import KERAS_DTYPES, LEARNING_RATE, Step, compile_lmzoo, make_batch

VOCABULARY = 30_522
PEAKS = {"bf16": 989e12, "fp32": 494.5e12}
PEERS = {"lmzoo-jax": JAX, "kerashub-jax": JAX, "transformers-torch": TORCH}


def count_flops(size: str, length: int, batch_size: int) -> float:
    """Return the number of floating-point operations in a training step."""
    layers, _, width, inner = SIZES[size]
    flops_per_token = 6 * layers * (4 * width**2 + 2 * width * inner) + 12 * layers * length * width
    return flops_per_token * length * batch_size


def build_keras_model(peer: str, size: str, dropout: float, precision: str) -> Any:
    """Return a compiled classifier of lmzoo or KerasHub."""
    import keras

    dtype = KERAS_DTYPES[precision]
    if peer.startswith("lmzoo"):
        return compile_lmzoo(lmzoo_classifier(size, VOCABULARY, dtype, dropout=dropout), peer)
    model = keras_hub_classifier(size, VOCABULARY, dtype, dropout=dropout)
    model.compile(optimizer=keras.optimizers.AdamW(LEARNING_RATE, weight_decay=0.01))
    return model


def make_keras_steps(peer: str, options: dict[str, Any]) -> tuple[Step, Step]:
    """Return two functions for lmzoo or KerasHub: one calls `fit` on two batches, the other takes a training step."""
    size, length, batch_size = read_case(options)
    model = build_keras_model(peer, size, options["dropout"], options["precision"])
    features, labels = make_batch(VOCABULARY, batch_size, length)
    if not peer.startswith("lmzoo"):
        features = {**features, "padding_mask": features["padding_mask"].astype(bool)}
    twice = {name: np.concatenate([values, values]) for name, values in features.items()}

    def fit() -> object:
        return model.fit(twice, np.concatenate([labels, labels]), batch_size=batch_size, verbose=0)

    return fit, lambda: model.train_on_batch(features, labels)


def read_case(options: dict[str, Any]) -> tuple[str, int, int]:
    """Parse a case into the size, the tokens in a sequence and the sequences in a batch."""
    size, length, batch_size = options["case"].split(":")
    return size, int(length), int(batch_size)


def make_torch_step(options: dict[str, Any]) -> Step:
    """Return a function that takes a training step with transformers."""
    import torch

    size, length, batch_size = read_case(options)
    device, dropout = options["device"], options["dropout"]
    if options["precision"] == "fp32":
        torch.set_float32_matmul_precision("high")  # TF32, as XLA's default on GPUs

    model = transformers_classifier(size, VOCABULARY, dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01, fused=True)
    compiled = torch.compile(model)
    features, labels = make_batch(VOCABULARY, batch_size, length)
    names = {"input_ids": "token_ids", "attention_mask": "padding_mask", "token_type_ids": "segment_ids"}

    def step() -> float:
        batch = {
            name: torch.tensor(features[key], dtype=torch.long).to(device, non_blocking=True)
            for name, key in names.items()
        }
        targets = torch.tensor(labels, dtype=torch.long).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=options["precision"] == "bf16"):
            loss = compiled(**batch, labels=targets).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the model, fit it for two steps, run two more, and return a function that measures a round."""
    shape = read_case(options)
    if peer == "transformers-torch":
        step = make_torch_step(options)
        first = time_call(lambda: [step() for _ in range(2)])
    else:
        fit, step = make_keras_steps(peer, options)
        first = time_call(fit)
    for _ in range(2):
        step()

    def round() -> dict[str, float]:
        seconds = time_call(lambda: [step() for _ in range(options["steps"])]) / options["steps"]
        return {
            "ms": 1000 * seconds,
            "% of the peak": 100 * count_flops(*shape) / seconds / PEAKS[options["precision"]],
            "tokens/s": shape[1] * shape[2] / seconds,
            "first fit s": first,
        }

    return round


def measure(options: dict[str, Any]) -> Rows:
    """Return the rounds of all peers for a case; the peers start and compile at the same time."""
    rows: Rows = {}
    workers = {peer: Worker("gpu_step", peer, options, PEERS[peer]) for peer in options["peers"]}
    try:
        for peer, worker in list(workers.items()):
            if "skip" in (reply := worker.answer()):
                console.print(f"[yellow]{peer} left out:[/] {reply['skip']}", highlight=False)
                workers.pop(peer).close()
        for _ in range(options["rounds"]):
            for peer, worker in workers.items():
                rows.setdefault(peer, []).append(worker.round())
    finally:
        for worker in workers.values():
            worker.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["nano:128:256", "base:128:256", "base:512:64", "large:512:32"])
    parser.add_argument("--precision", nargs="+", choices=PEAKS, default=["bf16"])
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="steps of a round")
    parser.add_argument("--device", default="cuda", help="of torch")
    parser.add_argument("--name", default="gpu_step", help="name of the result file")
    options = vars(parser.parse_args())
    rows, summary = {}, {}
    for precision in options["precision"]:
        for case in options["cases"]:
            key = f"{case}, {precision}"
            rows[key] = measure({**options, "case": case, "precision": precision})
            summary[key] = show(f"training step, {key}", rows[key], ("ms", "% of the peak", "first fit s"))
            save(options["name"], options, rows=rows, summary=summary)


if __name__ == "__main__":
    main()
