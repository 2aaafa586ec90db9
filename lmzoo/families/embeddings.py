"""Embeddings of tokens, of the sizes in a family's configuration."""

from __future__ import annotations

from typing import Any

import keras

from lmzoo.layers import TransformerEmbedding

# Arguments for embeddings of tokens as they are.
PLAIN = {"num_segments": 0, "normalize": False}


def build_embeddings(config: Any, dtype: keras.DTypePolicy, **arguments: Any) -> TransformerEmbedding:
    """Return the embeddings of a family.

    Args:
        config: `vocabulary_size`, `hidden_dim`, `max_sequence_length`, `dropout` and `initializer_range` are read.
        dtype: dtype policy.
        **arguments: others of `TransformerEmbedding`, or other sizes.
    """
    sizes = {
        "hidden_dim": config.hidden_dim,
        "max_sequence_length": config.max_sequence_length,
        "dropout": config.dropout,
        "initializer_range": config.initializer_range,
    }
    return TransformerEmbedding(config.vocabulary_size, **{**sizes, **arguments}, dtype=dtype, name="embeddings")
