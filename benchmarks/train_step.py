"""One train step and one forward pass of a BERT classifier, at equal shapes.

Every peer has dropout 0.1, AdamW, a batch without padding, and the step that its library compiles by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.common import console, interleave, save, show, warn_if_busy
from benchmarks.models import SIZES, keras_hub_classifier, lmzoo_classifier, transformers_classifier
from benchmarks.steps import (
    FORWARD,
    GROUPS,
    KERAS_DTYPES,
    LEARNING_RATE,
    PEERS,
    TRAIN,
    Steps,
    compile_lmzoo,
    make_batch,
    make_keras_steps,
    make_parser,
    make_torch_steps,
    measure_steps,
)

VOCABULARY = 30_522


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the model, run both functions twice, and return a function that measures a round."""
    build = _build_transformers if peer == "transformers-torch" else _build_keras
    return measure_steps(build(peer, options), options["steps"])


def _build_keras(peer: str, options: dict[str, Any]) -> Steps:
    features, labels = make_batch(VOCABULARY, options["batch_size"], options["length"])
    dtype = KERAS_DTYPES[options["precision"]]
    if peer.startswith("lmzoo"):
        model = compile_lmzoo(lmzoo_classifier(options["size"], VOCABULARY, dtype), peer)
    else:
        import keras

        features = {**features, "padding_mask": features["padding_mask"].astype(bool)}
        model = keras_hub_classifier(options["size"], VOCABULARY, dtype)
        model.compile(optimizer=keras.optimizers.AdamW(LEARNING_RATE, weight_decay=0.01))
    return make_keras_steps(model, features, labels)


def _build_transformers(peer: str, options: dict[str, Any]) -> Steps:
    import torch

    features, labels = make_batch(VOCABULARY, options["batch_size"], options["length"])
    names = {"input_ids": "token_ids", "attention_mask": "padding_mask", "token_type_ids": "segment_ids"}
    batch = {name: torch.tensor(features[key], dtype=torch.long) for name, key in names.items()}
    model = transformers_classifier(options["size"], VOCABULARY)
    return make_torch_steps(model, batch, labels, options["precision"])


def main() -> None:
    parser = make_parser(__doc__, "train_step", SIZES)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    options = vars(parser.parse_args())
    warn_if_busy()
    rows, summary = {}, {}
    for precision in options["precision"]:
        for group in options["group"]:
            chosen = {peer: PEERS[peer] for peer in GROUPS[group] if peer in options["peers"]}
            key = f"{group} {precision}"
            rows[key] = interleave("train_step", chosen, {**options, "precision": precision}, options["rounds"])
            title = f"BERT-{options['size']} {options['batch_size']} x {options['length']}, {key}"
            summary[key] = show(title, rows[key], (TRAIN, FORWARD, "peak memory GiB"))
    console.print("A ratio above 1 says how many times slower than lmzoo a peer is.")
    save(options["name"], options, rows=rows, summary=summary)


if __name__ == "__main__":
    main()
