"""Iteration over nested layers, and their weights."""

from __future__ import annotations

from collections.abc import Iterator

import keras

from lmzoo.common.tensor_types import Tensor
from lmzoo.layers.adapted import stores_updates


def sublayers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """Yield all layers nested in `layer`, parents before children."""
    if isinstance(layer, keras.Model):
        children = layer.layers
    else:  # Keras keeps its own lists of layers in attributes that begin with "_".
        values = [value for name, value in vars(layer).items() if not name.startswith("_")]
        children = [child for value in values for child in (value if isinstance(value, list) else [value])]
    for child in children:
        if isinstance(child, keras.layers.Layer):
            yield child
            yield from sublayers(child)


def merged_weights(model: keras.Model) -> list[tuple[str, Tensor]]:
    """Return paths and values of a model's weights as files store them: with LoRA updates, except in int8 weights."""
    adapted = [layer for layer in sublayers(model) if getattr(layer, "lora_enabled", False)]
    merged: dict[int, Tensor | None] = {}
    for layer in adapted:
        if not stores_updates(layer):
            merged |= {id(w): None for w in layer.weights if w.name.startswith("lora_")}
            merged |= {id(w): getattr(layer, w.name) for w in layer.weights if w.name in ("kernel", "embeddings")}
    values = [(w.path, merged.get(id(w), w)) for w in model.weights]
    return [(path, value) for path, value in values if value is not None]
