"""The overhead of `fit()` over the bare compiled train step, for lmzoo on both backends.

The same model is trained on the same batches in a loop over a hand-written `tf.function` or `jax.jit` step, and with
`fit()`: on encoded sequences, and on strings, which adds the tokenizer. On TensorFlow, `fit()` compiles once for all
shapes, and so does the hand-written step.
"""

from __future__ import annotations

import argparse
import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import JAX, TENSORFLOW, interleave, save, show, time_call, warn_if_busy
from benchmarks.models import SIZES, lmzoo_classifier

PEERS = {"lmzoo-tf": TENSORFLOW, "lmzoo-jax": JAX}
RUNS = ("bare step", "bare step of open shapes", "fit", "fit from strings")
MEASURES = (*(f"{run} ms" for run in RUNS), *(f"{run} overhead %" for run in RUNS[1:]))


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build texts of one length, so that all batches have the same shape, and all ways of training on them."""
    words = [f"w{i}" for i in range(997)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    rng = random.Random(1)
    count, size = options["steps"] * options["batch_size"], options["batch_size"]
    texts = [" ".join(rng.choices(words, k=options["length"] - 2)) for _ in range(count)]
    labels = np.array([rng.randrange(2) for _ in range(count)], "int32")
    model = lmzoo_classifier(options["size"], len(vocabulary), vocabulary=vocabulary)
    encoded = model.preprocessor.encode(texts)
    batches = [
        (model.preprocessor.features(encoded, np.arange(i, i + size), options["length"]), labels[i : i + size])
        for i in range(0, count, size)
    ]
    model.fit(encoded[: 2 * size], labels[: 2 * size], batch_size=size, verbose=0)
    if peer.endswith("tf"):
        loops = _make_tensorflow_loop(model, batches), _make_tensorflow_loop(model, batches, open_shapes=True)
    else:
        loops = (_make_jax_loop(model, batches),)
    for loop in loops:
        loop()  # compiles
    fits = [lambda x=x: model.fit(x, labels, batch_size=size, verbose=0) for x in (encoded, texts)]
    runs = {**dict(zip(RUNS, loops, strict=False)), **dict(zip(RUNS[-2:], fits, strict=True))}

    def round() -> dict[str, float]:
        steps = {name: 1000 * time_call(run) / options["steps"] for name, run in runs.items()}
        bare = steps["bare step"]
        overheads = {f"{name} overhead %": 100 * (ms / bare - 1) for name, ms in steps.items() if name != "bare step"}
        return {f"{name} ms": ms for name, ms in steps.items()} | overheads

    return round


def _make_tensorflow_loop(model: Any, batches: list, open_shapes: bool = False) -> Callable[[], None]:
    import tensorflow as tf

    variables = model.trainable_variables
    signature = tf.nest.map_structure(
        lambda array: tf.TensorSpec([None] * array.ndim if open_shapes else array.shape, array.dtype), batches[0]
    )

    @tf.function(input_signature=signature)
    def step(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(labels, model(features, training=True))
        gradients = tape.gradient(loss, [v.value for v in variables])
        model.optimizer.apply(gradients, variables)
        return loss

    batches = [tf.nest.map_structure(tf.constant, batch) for batch in batches]

    def loop() -> None:
        for batch in batches:
            loss = step(*batch)
        loss.numpy()

    return loop


def _make_jax_loop(model: Any, batches: list) -> Callable[[], None]:
    import jax

    def loss_of(trainable: Any, other_variables: Any, features: Any, labels: Any) -> Any:
        logits, other_variables = model.stateless_call(trainable, other_variables, features, training=True)
        return model.loss(labels, logits), other_variables

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, features: Any, labels: Any) -> Any:
        trainable, other_variables, slots = state
        (loss, other_variables), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            trainable, other_variables, features, labels
        )
        trainable, slots = model.optimizer.stateless_apply(slots, gradients, trainable)
        return (trainable, other_variables, slots), loss

    parts = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    start = tuple([np.array(v.value) for v in part] for part in parts)

    def loop() -> None:
        state = jax.tree.map(jax.numpy.array, start)
        for batch in batches:
            state, loss = step(state, *batch)
        loss.block_until_ready()

    return loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="nano")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--name", default="fit_overhead", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()
    chosen = {peer: PEERS[peer] for peer in PEERS if peer in options["peers"]}
    rows = interleave("fit_overhead", chosen, options, options["rounds"])
    title = f"{options['steps']} steps of {options['batch_size']} x {options['length']}, {options['size']}"
    save(options["name"], options, rows=rows, summary=show(title, rows, MEASURES))


if __name__ == "__main__":
    main()
