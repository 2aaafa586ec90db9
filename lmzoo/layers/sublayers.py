"""Nested layers of models: iteration, stored weights and quantization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from lmzoo.common.tensor_types import Tensor
from lmzoo.layers.adapted import get_base_weight, get_updates, merge_updates, stores_updates


def sublayers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """Yield all layers nested in `layer`, parents before children."""
    return (sublayer for _, sublayer in named_sublayers(layer))


def named_sublayers(layer: keras.layers.Layer, prefix: str = "") -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yield a pair of attribute path and layer for each layer nested in `layer`, parents before children.

    Args:
        layer: outermost layer, which is not yielded.
        prefix: start of all paths.
    """
    for name, child in list_children(layer):
        yield prefix + name, child
        yield from named_sublayers(child, f"{prefix}{name}/")


def list_children(layer: keras.layers.Layer) -> list[tuple[str, keras.layers.Layer]]:
    """Return a pair of name and layer for each layer in the public attributes, including in their lists and dicts.

    A model's children are the layers of its graph, then the layers in its attributes that are not part of the graph.
    """
    # Keras keeps its own lists of layers in attributes that begin with "_".
    attributes = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
    children = list(_find_layers("", attributes))
    if not isinstance(layer, keras.Model):
        return children
    graph_layers = [(f"layers/{index}", child) for index, child in enumerate(layer.layers)]
    graph_ids = {id(child) for child in layer.layers}
    return [*graph_layers, *((name, child) for name, child in children if id(child) not in graph_ids)]


def _find_layers(prefix: str, items: Mapping[Any, Any]) -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yield a pair of path and layer for each layer in a dict, and in its nested lists and dicts."""
    for key, value in items.items():
        name = f"{prefix}{key}"
        if isinstance(value, keras.layers.Layer):
            yield name, value
        elif isinstance(value, list):
            yield from _find_layers(f"{name}/", dict(enumerate(value)))
        elif isinstance(value, dict):
            yield from _find_layers(f"{name}/", value)


def get_stored_weights(model: keras.layers.Layer) -> list[tuple[str, Tensor]]:
    """Return the paths and values of a model's weights as files hold them.

    Low-rank updates are added to the weights, except in quantized layers that store the updates separately.

    Args:
        model: a model or a layer with sublayers.
    """
    adapted_layers = [layer for layer in sublayers(model) if getattr(layer, "lora_enabled", False)]
    stored_values: dict[int, Tensor | None] = {}
    for layer in adapted_layers:
        if not stores_updates(layer):
            stored_values |= {id(update): None for update in get_updates(layer)}
            stored_values[id(get_base_weight(layer))] = merge_updates(layer)
    named_values = [(w.path, stored_values.get(id(w), w)) for w in model.weights]
    return [(path, value) for path, value in named_values if value is not None]


def is_quantized(layer: keras.layers.Layer) -> bool:
    """Return whether the weights of a layer are quantized, for example to int8."""
    return layer.quantization_mode is not None


def get_quantizations(layer: keras.layers.Layer) -> list[dict[str, Any]]:
    """Return the path, dtype policy and LoRA rank of each quantized layer in `layer`, as JSON types."""
    return [
        {
            "path": path,
            "dtype": keras.dtype_policies.serialize(sublayer.dtype_policy),
            "lora_rank": sublayer.lora_rank if getattr(sublayer, "lora_enabled", False) else None,
        }
        for path, sublayer in named_sublayers(layer)
        if is_quantized(sublayer)
    ]


def restore_quantizations(layer: keras.layers.Layer, states: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Prepare the layers in `layer` for quantized weights and low-rank updates that will be loaded.

    Args:
        layer: outermost layer.
        states: descriptions of the quantized layers, from `get_quantizations`.

    Returns:
        The descriptions of layers that do not exist yet, because a `build` method creates them.
    """
    if not states:
        return []
    named_layers = dict(named_sublayers(layer))
    all_layers = list(sublayers(layer))
    missing_states = []
    for state in states:
        # Files written until November 2026 have indices instead of paths.
        target = all_layers[state["index"]] if "index" in state else named_layers.get(state["path"])
        if target is None:
            missing_states.append(state)
        else:
            _restore_quantized(target, state)
    return missing_states


def _restore_quantized(layer: keras.layers.Layer, state: Mapping[str, Any]) -> None:
    """Prepare a layer for quantized weights and low-rank updates that will be loaded into it."""
    layer.dtype_policy = keras.dtype_policies.deserialize(state["dtype"])
    rank = state["lora_rank"]
    if not rank:
        return
    if not layer.built:
        layer.lora_rank = layer.lora_alpha = rank  # read when the layer is built
    elif not layer.lora_enabled:
        layer.enable_lora(rank)
    layer.keeps_updates = True
