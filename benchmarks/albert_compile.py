"""The time in which an ALBERT classifier compiles its train step, and the time of a step.

Every peer has dropout 0.1, plain SGD, and a batch without padding. A round is a new process; "compile s" is the time of
its first step minus the time of later steps. Without `--xla`, Keras chooses: XLA on JAX, and on a CPU no XLA on
TensorFlow.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import JAX, TENSORFLOW, console, interleave, save, show, time_call, warn_if_busy

SIZES = {  # layers, heads, hidden width, intermediate width
    "base": (12, 12, 768, 3072),
    "xlarge": (24, 16, 2048, 8192),
    "xxlarge": (12, 64, 4096, 16384),
}
VOCABULARY = 30_000
BACKENDS = {"tf": TENSORFLOW, "jax": JAX}
PEERS = ("lmzoo", "lmzoo-one-layer", "lmzoo-unrolled", "kerashub")
MEASURES = ("compile s", "train step s")


def build_classifier(peer: str, size: str) -> Any:
    """Return the classifier, not yet compiled."""
    layers, heads, width, inner = SIZES[size]
    shape = {
        "vocabulary_size": VOCABULARY,
        "num_heads": heads,
        "embedding_dim": 128,
        "hidden_dim": width,
        "intermediate_dim": inner,
        "dropout": 0.1,
    }
    if peer == "kerashub":
        import keras_hub

        backbone = keras_hub.models.AlbertBackbone(**shape, num_layers=layers)
        return keras_hub.models.AlbertTextClassifier(backbone, num_classes=2, preprocessor=None)
    import lmzoo

    layers = 1 if peer == "lmzoo-one-layer" else layers
    backbone = lmzoo.models.AlbertBackbone(**shape, num_layers=layers, unroll=peer == "lmzoo-unrolled")
    return lmzoo.models.TextClassifier(backbone, num_classes=2)


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Import the peer, and return a function that measures a round."""
    import keras

    rng = np.random.default_rng(1)
    shape = (options["batch_size"], options["length"])
    ids = rng.integers(1000, VOCABULARY, shape).astype("int32")
    features = {"token_ids": ids, "padding_mask": np.ones(shape, "int32"), "segment_ids": np.zeros(shape, "int32")}
    if peer == "kerashub":
        features["padding_mask"] = features["padding_mask"].astype(bool)
    labels = rng.integers(2, size=shape[0]).astype("int32")

    def round() -> dict[str, float]:
        model = build_classifier(peer, options["size"])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss=loss, metrics=[], jit_compile=options["xla"] or "auto")
        first = time_call(lambda: model.train_on_batch(features, labels))
        step = statistics.median(
            time_call(lambda: model.train_on_batch(features, labels)) for _ in range(options["steps"])
        )
        return {"compile s": first - step, "train step s": step}

    return round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="xxlarge")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--xla", action="store_true", help="compile with XLA on both backends")
    parser.add_argument("--backend", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="steps after the first in a round; the median is reported")
    parser.add_argument("--name", default="albert_compile", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()
    rows, summary = {}, {}
    for backend in options["backend"]:
        peers = dict.fromkeys(options["peers"], BACKENDS[backend])
        rows[backend] = interleave("albert_compile", peers, options, options["rounds"], fresh=True)
        title = f"ALBERT-{options['size']} {options['batch_size']} x {options['length']}, {backend}"
        summary[backend] = show(title, rows[backend], (*MEASURES, "peak memory GiB"))
    console.print("A ratio above 1 says how many times slower than lmzoo a peer is.")
    save(options["name"], options, rows=rows, summary=summary)


if __name__ == "__main__":
    main()
