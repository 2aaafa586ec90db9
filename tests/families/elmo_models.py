"""Tiny random ELMos and batches for them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from lmzoo.families.elmo import ElmoBackbone
from tests.reference.elmo import word_row
from tests.reference.weights import to_numpy

WIDTH = 19
# Distinct primes: swapped axes cannot pass.
TINY = {
    "lstm_dim": 17,
    "projection_dim": 13,
    "char_embedding_dim": 3,
    "filters": ((1, 5), (2, 7), (3, 11)),
    "max_characters": WIDTH,
    "dropout": 0.0,
}
LENGTHS = (5, 2, 0, 1)  # words per row of `tiny_batch`


def tiny_elmo(seed: int = 17, **overrides: Any) -> ElmoBackbone:
    """Return a backbone whose weights are all random, except those of the mix."""
    backbone = ElmoBackbone(**{**TINY, **overrides})
    rng = np.random.default_rng(seed)
    for weight in backbone.bilm.weights:
        value = rng.normal(scale=0.4, size=weight.shape)
        if weight.path.endswith(("embedding", "embeddings")):
            value[0] = 0
        weight.assign(value.astype("float32"))
    return backbone


def tiny_batch(
    backbone: ElmoBackbone, lengths: tuple[int, ...] = LENGTHS, longest: int = 60, extra: int = 2, seed: int = 29
) -> dict[str, np.ndarray]:
    """Return rows of `lengths` random words of up to `longest` bytes, and `extra` columns of padding."""
    rng = np.random.default_rng(seed)
    shape = (len(lengths), max(lengths) + extra)
    if backbone.config.vocabulary_size is not None:
        ids = rng.integers(1, backbone.config.vocabulary_size, shape)
        return {"token_ids": np.where(np.arange(shape[1]) < np.array(lengths)[:, None], ids, 0).astype("int32")}
    width = backbone.config.max_characters
    batch = np.zeros((*shape, width), "int32")
    for row, length in zip(batch, lengths, strict=True):
        for t in range(length):
            row[t] = word_row(rng.integers(0, 256, rng.integers(1, longest + 1)).tolist(), width)
    return {"character_ids": batch}


def layers_and_state(backbone: ElmoBackbone, inputs: dict[str, np.ndarray], state: Any = None) -> Any:
    """Return `marked_layers` as arrays. (On JAX, `jit` avoids compiling operation by operation.)"""
    if keras.backend.backend() == "jax":
        import jax

        return arrays(jax.jit(lambda inputs, state: backbone.marked_layers(inputs, state))(inputs, state))
    return arrays(backbone.marked_layers(inputs, state))


def arrays(results: Any) -> Any:
    return to_numpy(results)
