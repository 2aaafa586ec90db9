"""The layers that a layer or a model consists of, and their weights."""

from __future__ import annotations

from collections.abc import Iterator

import keras

from lmzoo.tensor_types import Tensor


def sublayers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """All layers below `layer`, parents first."""
    if isinstance(layer, keras.Model):
        inside = layer.layers
    else:  # Keras keeps lists of its own, whose names begin with "_".
        values = [value for name, value in vars(layer).items() if not name.startswith("_")]
        inside = [child for value in values for child in (value if isinstance(value, list) else [value])]
    for child in inside:
        if isinstance(child, keras.layers.Layer):
            yield child
            yield from sublayers(child)


def merged_weights(model: keras.Model) -> list[tuple[str, Tensor]]:
    """Paths and values of a model's weights, in the order of a model without LoRA, whose updates are added to them."""
    adapted = [layer for layer in sublayers(model) if getattr(layer, "lora_enabled", False)]
    names = ("kernel", "embeddings")
    merged = {id(w): getattr(layer, w.name) for layer in adapted for w in layer.weights if w.name in names}
    return [(w.path, merged.get(id(w), w)) for w in model.weights if not w.name.startswith("lora_")]
