"""(a) One train step and one forward pass of a BERT classifier, at equal shapes.

Every peer has dropout 0.1, AdamW, a batch without padding, and the step that its library compiles by default.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import JAX, TENSORFLOW, TORCH, console, interleave, save, show, time_call, warn_if_busy
from benchmarks.models import SIZES, keras_hub_classifier, lmzoo_classifier, transformers_classifier

VOCABULARY = 30_522
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
MEASURES = ("train step s", "forward s")


def make_batch(options: dict[str, Any]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return a batch without padding, and its labels."""
    rng = np.random.default_rng(1)
    shape = (options["batch_size"], options["length"])
    ids = rng.integers(1000, VOCABULARY, shape).astype("int32")
    features = {"token_ids": ids, "padding_mask": np.ones(shape, "int32"), "segment_ids": np.zeros(shape, "int32")}
    return features, rng.integers(2, size=shape[0]).astype("int32")


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the model, run both functions once or twice, and return a function that measures a round."""
    features, labels = make_batch(options)
    build = _make_torch_steps if peer == "transformers-torch" else _make_keras_steps
    train, forward = build(peer, options, features, labels)
    for _ in range(2):  # the first call compiles; the second may compile again, because the optimizer now has a state
        train()
        forward()

    def round() -> dict[str, float]:
        return {
            measure: statistics.median(time_call(call) for _ in range(options["steps"]))
            for measure, call in zip(MEASURES, (train, forward), strict=True)
        }

    return round


def _make_keras_steps(peer: str, options: dict[str, Any], features: Any, labels: Any) -> tuple[Callable, Callable]:
    dtype = "mixed_bfloat16" if options["precision"] == "bf16" else "float32"
    if peer.startswith("lmzoo"):
        from lmzoo.training import AdamW

        model = lmzoo_classifier(options["size"], VOCABULARY, dtype)
        # Without lmzoo's default gradient clipping, which the other peers lack.
        model.compile(optimizer=AdamW(5e-5), **({"jit_compile": True} if peer.endswith("jit") else {}))
    else:
        import keras

        features = {**features, "padding_mask": features["padding_mask"].astype(bool)}
        model = keras_hub_classifier(options["size"], VOCABULARY, dtype)
        model.compile(optimizer=keras.optimizers.AdamW(5e-5, weight_decay=0.01))
    return lambda: model.train_on_batch(features, labels), lambda: model.predict_on_batch(features)


def _make_torch_steps(peer: str, options: dict[str, Any], features: Any, labels: Any) -> tuple[Callable, Callable]:
    import contextlib

    import torch

    model = transformers_classifier(options["size"], VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01, fused=True)
    batch = {
        "input_ids": torch.tensor(features["token_ids"], dtype=torch.long),
        "attention_mask": torch.tensor(features["padding_mask"], dtype=torch.long),
        "token_type_ids": torch.tensor(features["segment_ids"], dtype=torch.long),
    }
    targets = torch.tensor(labels, dtype=torch.long)

    def precision() -> Any:
        return torch.autocast("cpu", torch.bfloat16) if options["precision"] == "bf16" else contextlib.nullcontext()

    def train() -> None:
        model.train()
        with precision():
            loss = model(**batch, labels=targets).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    def forward() -> None:
        model.eval()
        with torch.inference_mode(), precision():
            model(**batch).logits.float().numpy()

    return train, forward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--group", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="calls of each function in a round, for the median")
    parser.add_argument("--name", default="train_step", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()
    rows, summary = {}, {}
    for precision in options["precision"]:
        for group in options["group"]:
            chosen = {peer: PEERS[peer] for peer in GROUPS[group] if peer in options["peers"]}
            key = f"{group} {precision}"
            rows[key] = interleave("train_step", chosen, {**options, "precision": precision}, options["rounds"])
            title = f"BERT-{options['size']} {options['batch_size']} x {options['length']}, {key}"
            summary[key] = show(title, rows[key], (*MEASURES, "peak memory GiB"))
    console.print("A ratio above 1 says how many times slower than lmzoo a peer is.")
    save(options["name"], options, rows=rows, summary=summary)


if __name__ == "__main__":
    main()
