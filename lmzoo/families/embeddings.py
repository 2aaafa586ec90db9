"""Builder of a family's token embeddings from its configuration."""

from __future__ import annotations

from typing import Any

import keras

from lmzoo.layers import TransformerEmbedding

# Arguments of `build_embeddings` for embeddings without segments or LayerNorm.
PLAIN = {"num_segments": 0, "normalize": False}


def build_embeddings(config: Any, dtype: keras.DTypePolicy, **arguments: Any) -> TransformerEmbedding:
    """Return an embedding layer with the sizes of a configuration.

    Args:
        config: configuration with `vocabulary_size`, `hidden_dim`, `max_sequence_length`, `dropout` and
            `initializer_range`.
        dtype: dtype policy of the layer.
        **arguments: arguments of `TransformerEmbedding`, which take precedence over fields of the configuration.
    """
    defaults = {
        "hidden_dim": config.hidden_dim,
        "max_sequence_length": config.max_sequence_length,
        "dropout": config.dropout,
        "initializer_range": config.initializer_range,
    }
    return TransformerEmbedding(config.vocabulary_size, **{**defaults, **arguments}, dtype=dtype, name="embeddings")
