"""One train step of a language model: GPT-2, and two layers of LSTMs.

Every peer has random weights, dropout 0.1, AdamW, sequences without padding, and the step that its library compiles by
default. lmzoo's LSTMs are compared with models of `keras.layers.LSTM` and `torch.nn.LSTM`, which also predict with the
table of embeddings.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import JAX, TENSORFLOW, TORCH, console, interleave, save, show, time_call, warn_if_busy
from benchmarks.models import SIZES, get_shape
from benchmarks.steps import LEARNING_RATE, make_torch_train_step

PEERS = {
    "lmzoo-tf": TENSORFLOW,
    "keras-tf": TENSORFLOW,  # KerasHub's GPT-2, or keras.layers.LSTM
    "lmzoo-jax": JAX,
    "keras-jax": JAX,
    "torch": TORCH,  # transformers' GPT-2, or torch.nn.LSTM
}
GROUPS = {"tf": ("lmzoo-tf", "keras-tf", "torch"), "jax": ("lmzoo-jax", "keras-jax", "torch")}
MODELS = ("gpt2", "lstm")
POSITIONS, LAYERS, DROPOUT = 1024, 2, 0.1
MEASURES = ("train step s", "peak memory GiB")


def prepare(peer: str, options: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Build the model, take two steps, of which the first compiles, and return a function that measures a round."""
    shape = options["batch_size"], options["length"] + 1
    ids = np.random.default_rng(1).integers(1000, options["vocabulary_size"], shape).astype("int32")  # (B, T + 1)
    build = _build_torch if peer == "torch" else _build_lmzoo if peer.startswith("lmzoo") else _build_keras
    train = build(options, ids)
    for _ in range(2):
        train()
    return lambda: {MEASURES[0]: statistics.median(time_call(train) for _ in range(options["steps"]))}


def _make_step(model: Any, ids: np.ndarray) -> Callable[[], object]:
    read, following = ids[:, :-1], ids[:, 1:]
    features = {"token_ids": read, "padding_mask": np.ones_like(read)}
    return lambda: model.train_on_batch(features, following)


def _build_lmzoo(options: dict[str, Any], ids: np.ndarray) -> Callable[[], object]:
    import lmzoo
    from lmzoo.training import AdamW

    size, common = options["size"], {"vocabulary_size": options["vocabulary_size"], "dropout": DROPOUT}
    if options["model"] == "gpt2":
        backbone = lmzoo.models.Gpt2Backbone(**common, **get_shape(size), max_sequence_length=POSITIONS)
    else:
        width = get_shape(size)["hidden_dim"]
        backbone = lmzoo.models.LstmLmBackbone(**common, num_layers=LAYERS, hidden_dim=width)
    model = lmzoo.models.CausalLM(backbone)
    model.compile(AdamW(LEARNING_RATE))  # without lmzoo's default gradient clipping, which the other peers lack
    return _make_step(model, ids)


def _build_keras(options: dict[str, Any], ids: np.ndarray) -> Callable[[], object]:
    import keras

    size = options["size"]
    if options["model"] == "gpt2":
        import keras_hub

        backbone = keras_hub.models.GPT2Backbone(
            vocabulary_size=options["vocabulary_size"],
            **get_shape(size),
            dropout=DROPOUT,
            max_sequence_length=POSITIONS,
        )
        model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    else:
        width = get_shape(size)["hidden_dim"]
        table = keras.layers.ReversibleEmbedding(options["vocabulary_size"], width)
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", "padding_mask")}
        x = keras.layers.Dropout(DROPOUT)(table(inputs["token_ids"]))  # (B, T, H)
        for _ in range(LAYERS):
            x = keras.layers.Dropout(DROPOUT)(keras.layers.LSTM(width, return_sequences=True)(x))
        model = keras.Model(inputs, table(x, reverse=True))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(LEARNING_RATE, weight_decay=0.01), loss)
    return _make_step(model, ids)


def _build_torch(options: dict[str, Any], ids: np.ndarray) -> Callable[[], object]:
    import torch

    count, size = options["vocabulary_size"], options["size"]
    batch = torch.tensor(ids, dtype=torch.long)
    if options["model"] == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        layers, heads, width, inner = SIZES[size]
        shape = {"n_layer": layers, "n_head": heads, "n_embd": width, "n_inner": inner}
        model: torch.nn.Module = GPT2LMHeadModel(GPT2Config(vocab_size=count, n_positions=POSITIONS, **shape))

        def logits() -> torch.Tensor:
            return model(batch[:, :-1]).logits
    else:
        width = SIZES[size][2]
        table, lstm = torch.nn.Embedding(count, width), torch.nn.LSTM(width, width, LAYERS, True, True, DROPOUT)
        model = torch.nn.ModuleList([table, lstm])

        def logits() -> torch.Tensor:
            x = torch.nn.functional.dropout(table(batch[:, :-1]), DROPOUT)  # (B, T, H)
            return torch.nn.functional.dropout(lstm(x)[0], DROPOUT) @ table.weight.T

    def compute_loss() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits().flatten(0, 1), batch[:, 1:].flatten())

    return make_torch_train_step(model, compute_loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--size", choices=SIZES, help="by default base for GPT-2, small for the LSTMs")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocabulary-size", type=int, default=30_522)
    parser.add_argument("--group", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="steps of a round, for the median")
    parser.add_argument("--name", default="language_model_step", help="name of the result file")
    options = vars(parser.parse_args())
    warn_if_busy()
    rows, summary = {}, {}
    for model in options["models"]:
        size = options["size"] or {"gpt2": "base", "lstm": "small"}[model]
        for group in options["group"]:
            chosen, key = {peer: PEERS[peer] for peer in GROUPS[group]}, f"{model} {size} {group}"
            settings = {**options, "model": model, "size": size}
            rows[key] = interleave("language_model_step", chosen, settings, options["rounds"])
            summary[key] = show(f"{key}, {options['batch_size']} x {options['length']}", rows[key], MEASURES)
    console.print("A ratio above 1 says how many times slower than lmzoo a peer is.")
    save(options["name"], options, rows=rows, summary=summary)


if __name__ == "__main__":
    main()
