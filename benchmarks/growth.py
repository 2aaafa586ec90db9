"""Time and memory of a step as the batch, length, width, number of layers or number of texts grows.

The base case is a BERT classifier of 4 x 256 on batches of 16 x 64 tokens without padding; one dimension at a time is
doubled three times. `texts` is the number of strings in one `predict`. The slope is the slope of a line through the
logarithms: 1 if the cost grows in proportion, 2 if it grows as the square. The operations of an encoder grow in
proportion to batch and layers, faster with the length, because of attention, and up to the square of the width.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.common import JAX, RESULTS, TENSORFLOW, Rows, console, interleave, save, time_call, warn_if_busy

MIDDLE = {"batch": 16, "length": 64, "width": 256, "layers": 4, "texts": 0}
AXES = {
    "batch": (8, 16, 32, 64),
    "length": (32, 64, 128, 256),
    "width": (128, 256, 512, 1024),
    "layers": (2, 4, 8, 16),
    "texts": (250, 500, 1000, 2000),
}
BACKENDS = {"tf": TENSORFLOW, "jax": JAX}
VOCABULARY, HEAD = 8000, 64
SECONDS, MEMORY = "seconds", "peak memory GiB"


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the model, take two steps, of which the first compiles, and return a function that measures a round."""
    axis, value = peer.split()
    size = {**MIDDLE, axis: int(value)}
    step = make_prediction(size) if size["texts"] else make_training_step(size)
    for _ in range(2):
        step()
    return lambda: {SECONDS: statistics.median(time_call(step) for _ in range(options["steps"]))}


def build_classifier(size: dict[str, int], preprocessor: Any = None) -> Any:
    """Build a classifier with the number of layers and the width in `size`."""
    import lmzoo

    backbone = lmzoo.models.BertBackbone(
        vocabulary_size=VOCABULARY,
        num_layers=size["layers"],
        num_heads=size["width"] // HEAD,
        hidden_dim=size["width"],
        intermediate_dim=4 * size["width"],
    )
    return lmzoo.models.TextClassifier(backbone, preprocessor, num_classes=2)


def make_training_step(size: dict[str, int]) -> Callable[[], object]:
    """Return a function that takes a train step."""
    model = build_classifier(size)
    rng = np.random.default_rng(1)
    shape = size["batch"], size["length"]
    ids = rng.integers(10, VOCABULARY, shape).astype("int32")
    features = {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    labels = rng.integers(2, size=size["batch"])
    return lambda: model.train_on_batch(features, labels)


def make_prediction(size: dict[str, int]) -> Callable[[], object]:
    """Return a function that predicts the classes of random texts of 5 to 60 words."""
    from lmzoo.registry.family import families
    from lmzoo.text import Preprocessor, WordPieceTokenizer

    words = [f"w{i}" for i in range(5000)]
    tokenizer = WordPieceTokenizer.of_words(words, VOCABULARY)
    model = build_classifier(size, Preprocessor(tokenizer, families()["bert"].packing, 64))
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(words, rng.integers(5, 61))) for _ in range(size["texts"])]
    return lambda: model.predict(texts, batch_size=size["batch"], verbose=0)


def fit_slope(points: dict[int, float]) -> float:
    """Return the slope of the line through the logarithms of some points."""
    x, y = np.log([*points]), np.log([*points.values()])
    return float(np.polyfit(x, y, 1)[0])


def group_by_axis(rows: Rows, measure: str) -> dict[str, dict[int, float]]:
    """Return the median of a measure at each value of each axis."""
    medians: dict[str, dict[int, float]] = {}
    for peer, rounds in rows.items():
        axis, value = peer.split()
        medians.setdefault(axis, {})[int(value)] = statistics.median(row[measure] for row in rounds)
    return medians


def draw(rows: dict[str, Rows], path: Path) -> None:
    """Draw time and memory against each axis, both on logarithmic scales."""
    from matplotlib.figure import Figure  # `pyplot` would start a graphical backend

    figure = Figure(figsize=(2.4 * len(AXES), 4.6), layout="constrained")
    axes = figure.subplots(2, len(AXES), sharey="row")
    for line, measure in zip(axes, (SECONDS, MEMORY), strict=True):
        for backend, backend_rows in rows.items():
            medians = group_by_axis(backend_rows, measure)
            for axis, panel in zip(AXES, line, strict=True):
                if points := medians.get(axis):
                    panel.loglog([*points], [*points.values()], "o-", label=f"{backend}, slope {fit_slope(points):.2f}")
        for axis, panel in zip(AXES, line, strict=True):
            panel.set_xlabel(axis)
            panel.set_xticks(AXES[axis], [str(value) for value in AXES[axis]], minor=False)
            panel.minorticks_off()
            panel.grid(alpha=0.3)
            panel.legend(fontsize="x-small")
        line[0].set_ylabel(measure)
    figure.savefig(path)
    console.print(f"drawn in {path}", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--values", type=int, default=4, help="how many values of each, from the smallest")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="steps of a round, for the median")
    parser.add_argument("--name", default="growth", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()
    rows: dict[str, Rows] = {}
    slopes: dict[str, dict[str, dict[str, float]]] = {}
    for backend in options["backends"]:
        rows[backend] = {}
        for axis in options["axes"]:
            peers = {f"{axis} {value}": BACKENDS[backend] for value in AXES[axis][: options["values"]]}
            rows[backend] |= interleave("growth", peers, options, options["rounds"])
        slopes[backend] = {
            measure: {axis: fit_slope(points) for axis, points in group_by_axis(rows[backend], measure).items()}
            for measure in (SECONDS, MEMORY)
        }
        table = Table("", *options["axes"], title=f"slopes, {backend}")
        for measure, slopes_by_axis in slopes[backend].items():
            table.add_row(measure, *(f"{slopes_by_axis[axis]:.2f}" for axis in options["axes"]))
        console.print(table)
    draw(rows, RESULTS / f"{options['name']}.svg")
    save(options["name"], options, rows=rows, summary=slopes)


if __name__ == "__main__":
    main()
