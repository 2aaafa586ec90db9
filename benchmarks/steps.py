"""Train steps and forward passes of a classifier from each library, for the benchmarks that measure them."""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks.common import JAX, TENSORFLOW, TORCH, time_call

PEERS = {
    "lmzoo-tf": TENSORFLOW,
    "lmzoo-tf-jit": TENSORFLOW,
    "kerashub-tf": TENSORFLOW,
    "lmzoo-jax": JAX,
    "kerashub-jax": JAX,
    "transformers-torch": TORCH,
}
# Groups of peers that fit into memory together (BERT-base takes 3 to 4 GiB); each is compared with the first peer.
GROUPS = {
    "tf": ("lmzoo-tf", "kerashub-tf", "transformers-torch", "lmzoo-tf-jit"),
    "jax": ("lmzoo-jax", "kerashub-jax", "transformers-torch"),
}
TRAIN = "train step s"
FORWARD = "forward s"
KERAS_DTYPES = {"bf16": "mixed_bfloat16", "fp32": "float32"}
LEARNING_RATE = 5e-5
Step = Callable[[], object]
Steps = dict[str, Step]  # by measure


def make_parser(
    description: str | None,
    name: str,
    sizes: Iterable[str],
    peers: Iterable[str] = tuple(PEERS),
    groups: Iterable[str] = tuple(GROUPS),
) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks of steps have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(sizes), default="base")
    parser.add_argument("--group", nargs="+", choices=groups, default=list(groups))
    parser.add_argument("--peers", nargs="+", choices=peers, default=list(peers))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="calls of each function in a round, for the median")
    parser.add_argument("--name", default=name, help="name of the result file")
    return parser


def make_batch(vocabulary_size: int, batch_size: int, length: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the features of a batch without padding, and its labels."""
    rng = np.random.default_rng(1)
    shape = (batch_size, length)
    ids = rng.integers(1000, vocabulary_size, shape).astype("int32")
    features = {"token_ids": ids, "padding_mask": np.ones(shape, "int32"), "segment_ids": np.zeros(shape, "int32")}
    return features, rng.integers(2, size=batch_size).astype("int32")


def measure_steps(steps: Steps, calls: int) -> Callable[[], dict[str, float]]:
    """Call each function, which compiles it, and return a function that measures a round.

    Args:
        steps: Functions by the names of their measures.
        calls: Number of calls of each function in a round, of which the median counts.
    """
    # The second call of a train step may compile again, because the optimizer now has a state.
    for _ in range(2 if TRAIN in steps else 1):
        for step in steps.values():
            step()
    return lambda: {name: statistics.median(time_call(step) for _ in range(calls)) for name, step in steps.items()}


def compile_lmzoo(model: Any, peer: str) -> Any:
    """Compile a task of lmzoo without its default gradient clipping, which the other peers lack, and return it."""
    from lmzoo.training import AdamW

    model.compile(optimizer=AdamW(LEARNING_RATE), **({"jit_compile": True} if peer.endswith("jit") else {}))
    return model


def make_keras_steps(model: Any, features: dict[str, np.ndarray], labels: np.ndarray) -> Steps:
    """Return the train step and the forward pass of a compiled Keras model."""
    return {
        TRAIN: lambda: model.train_on_batch(features, labels),
        FORWARD: lambda: model.predict_on_batch(features),
    }


def make_torch_train_step(model: Any, compute_loss: Callable[[], Any], learning_rate: float = LEARNING_RATE) -> Step:
    """Return a function that takes a train step with AdamW."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, fused=True)

    def train() -> float:
        model.train()
        loss = compute_loss()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return train


def make_torch_steps(model: Any, batch: dict[str, Any], labels: np.ndarray, precision: str = "fp32") -> Steps:
    """Return the train step and the forward pass of a classifier of transformers.

    Args:
        model: The classifier.
        batch: Tensors by the names of the model's arguments.
        labels: Labels of the batch.
        precision: "fp32", or "bf16" for autocasting to bfloat16.
    """
    import torch

    targets = torch.tensor(labels, dtype=torch.long)

    def autocast() -> Any:
        return torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()

    def compute_loss() -> Any:
        with autocast():
            return model(**batch, labels=targets).loss

    def forward() -> None:
        model.eval()
        with torch.inference_mode(), autocast():
            model(**batch).logits.float().numpy()

    return {TRAIN: make_torch_train_step(model, compute_loss), FORWARD: forward}
