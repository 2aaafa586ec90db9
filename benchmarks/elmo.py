"""ELMo's encoder on sentences, and a training step of a bidirectional language model's LSTMs.

"rnn" is the straightforward implementation in Keras: one `keras.layers.RNN` for each layer and direction, over a cell
with projection and clips, and the character CNN on every token. Both peers take the same arrays.

Inference reads sentences of SST-2, sorted by length, or random ones if the shared development data is missing.
Training takes the gradient of the mean square of the outputs. It leaves out the softmax over words, which is the same.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import JAX, SHARED, TENSORFLOW, console, interleave, save, show, time_call, warn_if_busy

SIZES = {  # memory width, projection width, number of highway layers
    "tiny": (64, 16, 1),
    "small": (1024, 128, 1),
    "medium": (2048, 256, 1),
    "original": (4096, 512, 2),
}
BACKENDS = {"tf": TENSORFLOW, "jax": JAX}
PEERS = ("lmzoo", "lmzoo-bf16", "rnn")


def read_sentences(count: int) -> list[list[str]]:
    """Return tokenized sentences, sorted by length."""
    path = SHARED / "data/sst2/stsa.binary.train"
    if path.exists():
        lines = [line.split()[1:] for line in path.read_text("utf-8").splitlines()[:count]]
    else:
        rng = np.random.default_rng(1)
        words = ["".join(map(chr, rng.integers(97, 123, rng.integers(1, 12)))) for _ in range(4000)]
        lines = [list(rng.choice(words, rng.integers(3, 40))) for _ in range(count)]
    return sorted((line for line in lines if line), key=len)


def build_rnn_model(size: str, dtype: str) -> Any:
    """Build the model with `keras.layers.RNN`, from character ids (B, T, 50) to the top layer's outputs (B, T, 2P)."""
    import keras
    from keras import ops

    from lmzoo.families.elmo.config import FILTERS

    memory_dim, width, highways = SIZES[size]

    class Cell(keras.layers.Layer):
        """An LSTM cell with projection and clips."""

        state_size = (memory_dim, width)
        output_size = width

        def build(self, input_shape: Any) -> None:
            self.kernel = self.add_weight(shape=(2 * width, 4 * memory_dim), initializer="glorot_uniform")
            self.bias = self.add_weight(shape=(4 * memory_dim,), initializer="zeros")
            self.projection = self.add_weight(shape=(memory_dim, width), initializer="glorot_uniform")

        def call(self, inputs: Any, states: Any) -> tuple[Any, Any]:
            memory, output = states
            z = ops.matmul(ops.concatenate([inputs, output], axis=1), self.kernel) + self.bias
            i, j, f, o = ops.split(z, 4, axis=1)
            memory = ops.clip(ops.sigmoid(f + 1.0) * memory + ops.sigmoid(i) * ops.tanh(j), -3, 3)
            output = ops.clip(ops.matmul(ops.sigmoid(o) * ops.tanh(memory), self.projection), -3, 3)
            return output, (memory, output)

    class Characters(keras.layers.Layer):
        """The character CNN, on every token."""

        def build(self, input_shape: Any) -> None:
            dim = sum(count for _, count in FILTERS)
            self.embedding = keras.layers.Embedding(262, 16)
            self.convolutions = [keras.layers.Conv1D(count, kernel) for kernel, count in FILTERS]
            self.gates = [keras.layers.Dense(dim, "sigmoid") for _ in range(highways)]
            self.carries = [keras.layers.Dense(dim, "relu") for _ in range(highways)]
            self.projection = keras.layers.Dense(width)
            for layer in self.convolutions:
                layer.build((None, 50, 16))
            for layer in (*self.gates, *self.carries, self.projection):
                layer.build((None, dim))

        def compute_output_shape(self, input_shape: Any) -> Any:
            return (*input_shape[:2], width)

        def call(self, ids: Any) -> Any:
            x = ops.reshape(self.embedding(ids), (-1, 50, 16))  # (B·T, 50, 16)
            x = ops.concatenate([ops.relu(ops.max(layer(x), axis=1)) for layer in self.convolutions], axis=1)
            for gate, carry in zip(self.gates, self.carries, strict=True):
                weight = gate(x)
                x = weight * carry(x) + (1 - weight) * x
            return ops.reshape(self.projection(x), (*ops.shape(ids)[:2], width))  # (B, T, P)

    ids = keras.Input((None, 50), dtype="int32")
    mask = ops.any(ids > 0, axis=-1)  # (B, T)
    x = Characters()(ids)
    forward = backward = x
    for layer in range(2):
        forward_output = keras.layers.RNN(Cell(), return_sequences=True)(forward, mask=mask)
        backward_output = keras.layers.RNN(Cell(), return_sequences=True, go_backwards=True)(backward, mask=mask)
        backward_output = ops.flip(backward_output, axis=1)
        forward, backward = (
            (forward_output + forward, backward_output + backward) if layer else (forward_output, backward_output)
        )
    return keras.Model(ids, ops.concatenate([forward, backward], axis=2))


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the model, run every shape once, and return a function that measures a round."""
    import keras

    from lmzoo.models import ElmoBackbone
    from lmzoo.text import batch_to_ids

    memory, width, highways = SIZES[options["size"]]
    dtype = "mixed_bfloat16" if peer.endswith("bf16") else "float32"
    if peer == "rnn":
        model = build_rnn_model(options["size"], dtype)
        name = None
    else:
        backbone = ElmoBackbone(lstm_dim=memory, projection_dim=width, num_highway=highways, dropout=0.0, dtype=dtype)
        model, name = keras.Model(backbone.input, backbone.output["hidden_states"][-1]), "character_ids"
        backbone.bilm.encoder.dedupe = keras.backend.backend() == "tensorflow"

    def make_inputs(ids: np.ndarray) -> Any:
        return {name: ids} if name else ids

    if options["train"]:
        ids = batch_to_ids([["word"] * options["length"]] * options["batch_size"])
        ids = np.where(ids == 115, np.random.default_rng(2).integers(98, 123, ids.shape), ids).astype("int32")
        target = np.zeros((*ids.shape[:2], 2 * width), "float32")
        model.compile(keras.optimizers.SGD(0.01), "mse")
        for _ in range(2):
            model.train_on_batch(make_inputs(ids), target)

        def train() -> dict[str, float]:
            step = statistics.median(
                time_call(lambda: model.train_on_batch(make_inputs(ids), target)) for _ in range(3)
            )
            return {"train step s": step}

        return train

    lines = read_sentences(options["sentences"])
    size = options["batch_size"]
    batches = [batch_to_ids(lines[i : i + size]).astype("int32") for i in range(0, len(lines), size)]

    def predict(ids: np.ndarray) -> Any:
        return model.predict_on_batch(make_inputs(ids))

    for ids in batches:
        predict(ids)
    tokens = sum(map(len, lines))

    def infer() -> dict[str, float]:
        return {"s per 1000 tokens": 1000 * time_call(lambda: list(map(predict, batches))) / tokens}

    return infer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, help="by default original for inference and small for training")
    parser.add_argument("--backend", choices=BACKENDS, default="tf")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("inference", "training"))
    parser.add_argument("--name", default="elmo", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()
    peers = dict.fromkeys(options["peers"], BACKENDS[options["backend"]])
    rows, summary = {}, {}
    if options["only"] != "training":
        run = {**options, "train": False, "size": options["size"] or "original", "batch_size": 32}
        rows["inference"] = interleave("elmo", peers, run, options["rounds"])
        title = f"ELMo {run['size']}, batches of 32 sentences, {options['backend']}"
        summary["inference"] = show(title, rows["inference"], ("s per 1000 tokens", "peak memory GiB"))
    if options["only"] != "inference":
        run = {**options, "train": True, "size": options["size"] or "small", "batch_size": 64, "length": 20}
        rows["training"] = interleave("elmo", peers, run, options["rounds"])
        title = f"biLM {run['size']}, 64 x 20, {options['backend']}"
        summary["training"] = show(title, rows["training"], ("train step s", "peak memory GiB"))
    console.print("A ratio above 1 says how many times slower than lmzoo a peer is.")
    save(options["name"], options, rows=rows, summary=summary)


if __name__ == "__main__":
    main()
