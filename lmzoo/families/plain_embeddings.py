"""Embeddings of tokens as they are: without segments and normalization, and without learned positions."""

from __future__ import annotations

from typing import Any

import keras

from lmzoo.layers import TransformerEmbedding


def plain_embeddings(
    config: Any, dtype: keras.DTypePolicy, positions: int | None = None, **arguments: Any
) -> TransformerEmbedding:
    """Return the embeddings of a family, of the sizes in its configuration.

    Args:
        config: `vocabulary_size`, `hidden_dim`, `dropout` and `initializer_range` are read.
        dtype: dtype policy.
        positions: number of positions; None for none.
        **arguments: others of `TransformerEmbedding`.
    """
    return TransformerEmbedding(
        config.vocabulary_size,
        config.hidden_dim,
        positions,
        num_segments=0,
        dropout=config.dropout,
        initializer_range=config.initializer_range,
        normalize=False,
        dtype=dtype,
        name="embeddings",
        **arguments,
    )
