"""The possible gain of packed batches: an epoch grouped by length, and a lower bound for packed rows.

Several texts in one row of 128 tokens need little padding, and all batches have one shape, so that nothing is compiled
twice. But every batch needs as many rows as the fullest one, and attention reads whole rows. `packed` trains the same
classifier on that many ordinary sequences of 128 tokens: keeping the texts of a row apart would only add to the cost.
The texts are SST-2's sentences in batches of 32, tokenized beforehand; the first round compiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import JAX, TENSORFLOW, interleave, ready, save, show, time_call
from benchmarks.finetune_epoch import SENTENCES, VOCABULARY, read
from benchmarks.models import SIZES, lmzoo_classifier

PEERS = {
    f"{name}{suffix}": environment
    for name, environment in (("lmzoo-tf", TENSORFLOW), ("lmzoo-tf-jit", TENSORFLOW), ("lmzoo-jax", JAX))
    for suffix in ("", "-packed")
}
SECONDS, TOKENS = MEASURES = "seconds an epoch", "tokens computed for a text"
ROW = 128


def count_rows(lengths: np.ndarray) -> int:
    """Return the number of rows that a batch's texts fill, placed longest first into the first row with room."""
    room: list[int] = []
    for length in sorted(lengths, reverse=True):
        row = next((i for i, free in enumerate(room) if free >= length), len(room))
        if row == len(room):
            room.append(ROW)
        room[row] -= length
    return len(room)


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the model; a round is one epoch."""
    from lmzoo.tasks.base.examples import BatchOptions
    from lmzoo.tasks.inputs import read_inputs

    vocabulary = VOCABULARY.read_text("utf-8").split("\n")[:-1]
    texts, labels = read("train", options["sentences"])
    model = lmzoo_classifier(options["size"], len(vocabulary), vocabulary=vocabulary)
    model.compile(jit_compile="jit" in peer or "auto")
    sequences, size = model.preprocessor.encode(texts), options["batch_size"]
    lengths = np.minimum(sequences.lengths, ROW)  # (n,)
    if peer.endswith("packed"):
        order = np.random.default_rng(1).permutation(len(texts))
        batches = [lengths[order[start : start + size]] for start in range(0, len(texts), size)]
        size = max(map(count_rows, batches))
        computed = len(batches) * size * ROW
        ids = np.random.default_rng(2).integers(1000, len(vocabulary), (len(batches) * size, ROW)).astype("int32")
        sequences = {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
        labels = ids[:, 0] % 2
    else:
        grouped, *_ = model.batches(read_inputs(sequences, labels), BatchOptions(size, "shuffle"))
        computed = sum(features["token_ids"].size for features, *_ in grouped.batches())
    tokens_per_text = computed / len(texts)
    return lambda: {
        SECONDS: time_call(lambda: model.fit(sequences, labels, batch_size=size, verbose=0)),
        TOKENS: tokens_per_text,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--sentences", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=4, help="epochs, the first of them cold")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--name", default="packing", help="name of the result file")
    options = vars(parser.parse_args())
    if not ready(VOCABULARY, SENTENCES):
        return
    rows = interleave("packing", {peer: PEERS[peer] for peer in options["peers"]}, options, options["rounds"])
    cold = show("first epoch", {peer: r[:1] for peer, r in rows.items()}, MEASURES)
    warm = show("later epochs", rows, MEASURES, skip=1)
    save(options["name"], options, rows=rows, summary={"first epoch": cold, "later epochs": warm})


if __name__ == "__main__":
    main()
