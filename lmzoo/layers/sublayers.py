"""Nested layers of models: iteration, stored weights and quantization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras

from lmzoo.common.tensor_types import Tensor
from lmzoo.layers.adapted import get_base_weight, get_updates, merge_updates, stores_updates


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


def get_stored_weights(model: keras.layers.Layer) -> list[tuple[str, Tensor]]:
    """Return the paths and values of the weights of a model without LoRA: updates are added, except to int8 weights.

    Args:
        model: a model or a layer with sublayers.
    """
    adapted_layers = [layer for layer in sublayers(model) if getattr(layer, "lora_enabled", False)]
    stored_values: dict[int, Tensor | None] = {}
    for layer in adapted_layers:
        if not stores_updates(layer):
            stored_values |= {id(update): None for update in get_updates(layer)}
            stored_values[id(get_base_weight(layer))] = merge_updates(layer)
    values = [(w.path, stored_values.get(id(w), w)) for w in model.weights]
    return [(path, value) for path, value in values if value is not None]


def is_quantized(layer: keras.layers.Layer) -> bool:
    """Return whether the weights of a layer are quantized, for example to int8."""
    return layer.quantization_mode is not None


def get_quantization(index: int, layer: keras.layers.Layer) -> dict[str, Any]:
    """Return the quantization of a layer, and the rank of its low-rank updates, as JSON types.

    Args:
        index: int, index of the layer among the `sublayers` of its outermost layer.
        layer: quantized layer.
    """
    rank = layer.lora_rank if getattr(layer, "lora_enabled", False) else None
    return {"index": index, "dtype": keras.dtype_policies.serialize(layer.dtype_policy), "lora_rank": rank}


def restore_quantized(layer: keras.layers.Layer, state: Mapping[str, Any]) -> None:
    """Prepare an unbuilt layer for the quantized weights and low-rank updates that `get_quantization` describes."""
    layer.dtype_policy = keras.dtype_policies.deserialize(state["dtype"])
    if state["lora_rank"]:
        layer.lora_rank = layer.lora_alpha = state["lora_rank"]  # read when the layer is built
        layer.keeps_updates = True
