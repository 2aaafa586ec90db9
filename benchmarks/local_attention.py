"""The cost of local attention as sequences grow: a layer of ModernBERT-base, forward and backward.

The layer reads one sequence without padding, with 12 heads of width 64, windows of 128, rotary positions and no biases.
`blocks` is the local attention that lmzoo computes for long sequences; `mask` is local attention with a mask over all
pairs of positions, which is faster for short sequences; `global` is attention to all positions. A slope is the slope of
a line through the logarithms from 1,024 tokens on: 1 if the cost grows in proportion, 2 if it grows as the square.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.common import JAX, TENSORFLOW, Rows, console, interleave, save, time_call, warn_if_busy
from benchmarks.growth import MEMORY, SECONDS, fit_slope

WIDTH, HEADS, WINDOW = 768, 12, 128
LENGTHS = {
    "blocks": (64, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192),
    "mask": (64, 128, 192, 256, 384, 512, 1024, 2048),
    "global": (64, 128, 256, 512, 1024, 2048, 4096),
}
LONG = 1024
BACKENDS = {"tf": TENSORFLOW, "jax": JAX}


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the layer, take two steps, of which the first compiles, and return a function that measures a round."""
    from lmzoo.layers import SelfAttention, attention

    form, length = peer.split()
    attention.prefers_blocks = lambda *_: form == "blocks"  # type: ignore[attr-defined]
    window = None if form == "global" else WINDOW
    layer = SelfAttention(HEADS, WIDTH, use_bias=False, rotary_wavelength=10_000.0, window=window)
    layer.build((None, None, WIDTH))
    x = np.random.default_rng(1).normal(size=(1, int(length), WIDTH)).astype("float32")
    step = make_step(layer, x, np.ones((1, int(length)), bool))
    for _ in range(2):
        step()
    return lambda: {SECONDS: statistics.median(time_call(step) for _ in range(options["steps"]))}


def make_step(layer: Any, x: np.ndarray, mask: np.ndarray) -> Callable[[], object]:
    """Return a compiled function that computes the gradients of the sum of the layer's squared outputs."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        @tf.function
        def gradients(x: Any, mask: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(tf.square(layer(x, mask)))
            return tape.gradient(loss, [x, *(weight.value for weight in layer.trainable_variables)])

        inputs = tf.constant(x), tf.constant(mask)
        return lambda: [gradient.numpy() for gradient in gradients(*inputs)]
    import jax

    weights = [weight.value for weight in layer.trainable_variables]

    def loss(weights: Any, x: Any) -> Any:
        result, _ = layer.stateless_call(weights, [v.value for v in layer.non_trainable_variables], x, mask)
        return jax.numpy.sum(jax.numpy.square(result))

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))
    return lambda: jax.block_until_ready(gradients(weights, x))


def compute_medians(rows: Rows, form: str, measure: str) -> dict[int, float]:
    """Return the median of a measure at each length, for one form of attention."""
    rows_of_form = {peer: rounds for peer, rounds in rows.items() if peer.startswith(f"{form} ")}
    return {
        int(peer.split()[1]): statistics.median(row[measure] for row in rounds) for peer, rounds in rows_of_form.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--longest", type=int, default=8192, help="leave out longer sequences")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="steps of a round, for the median")
    parser.add_argument("--name", default="local_attention", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()
    rows: dict[str, Rows] = {}
    slopes: dict[str, dict[str, dict[str, float]]] = {}
    for backend in options["backends"]:
        lengths = {form: [n for n in LENGTHS[form] if n <= options["longest"]] for form in options["forms"]}
        peers = {f"{form} {length}": BACKENDS[backend] for form, several in lengths.items() for length in several}
        # Each form has a process of its own: together they would not fit into memory.
        rows[backend] = interleave("local_attention", peers, options, options["rounds"], fresh=True)
        slopes[backend] = {}
        table = Table("form", "measure", *map(str, LENGTHS["blocks"]), "slope", title=backend)
        for form in options["forms"]:
            for measure in (SECONDS, MEMORY):
                points = compute_medians(rows[backend], form, measure)
                long = {length: value for length, value in points.items() if length >= LONG}
                growth = fit_slope(long) if len(long) > 1 else float("nan")
                slopes[backend].setdefault(form, {})[measure] = growth
                cells = [f"{points[n]:.3g}" if n in points else "" for n in LENGTHS["blocks"]]
                table.add_row(form, measure, *cells, f"{growth:.2f}")
        console.print(table)
    save(options["name"], options, rows=rows, summary=slopes)


if __name__ == "__main__":
    main()
