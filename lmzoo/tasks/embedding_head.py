"""The head of embedding models: pooling of token vectors, and layers applied to the pooled vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, require, require_share
from lmzoo.common.tensor_types import Tensor
from lmzoo.families.backbone import Backbone
from lmzoo.layers import (
    Dropout,
    LastTokenPooler,
    LayerNorm,
    MaxPooler,
    MeanPooler,
    SquareRootMeanPooler,
    WeightedMeanPooler,
    get_output_activation,
    unit_vectors,
)
from lmzoo.layers.initializers import TruncatedNormal
from lmzoo.registry.family import get_family

_POOLERS: dict[str, type[keras.layers.Layer]] = {
    "max": MaxPooler,
    "mean": MeanPooler,
    "mean_sqrt_len_tokens": SquareRootMeanPooler,
    "weightedmean": WeightedMeanPooler,
    "lasttoken": LastTokenPooler,
}
POOLING_MODES = ("cls", *_POOLERS)
_MAX_LAYERS = 32
_EPSILON = 1e-5  # the default of PyTorch's LayerNorm
# Kind of layer -> its settings and their defaults; a setting without a default is required.
_REQUIRED = object()
_SETTINGS: dict[str, dict[str, object]] = {
    "dense": {"units": _REQUIRED, "activation": "linear", "use_bias": True},
    "dropout": {"rate": _REQUIRED},
    "layer_norm": {},
    "normalize": {},
    "truncate": {"units": _REQUIRED},
}


def check_pooling(backbone: Backbone, pooling: str | Sequence[str]) -> list[str]:
    """Check that a task on the backbone can use `pooling`, and return its modes as a list.

    Raises:
        ValueError: If there is no mode, a mode is unknown or repeated, or a mode is "cls" but the family has no special
            first token (ELMo).
    """
    family = get_family(backbone)  # raises an error for anything but a backbone
    modes = list_modes(pooling)
    if "cls" in modes and not family.packing.start:
        raise ValueError(
            f'This {type(backbone).__name__} has no first token that represents the text: choose "mean" or "max".'
        )
    return modes


def list_modes(pooling: str | Sequence[str]) -> list[str]:
    """Check the names in the `pooling` of a task, and return them as a list.

    Raises:
        ValueError: If there is no mode, or a mode is unknown or repeated.
    """
    modes = [*pooling] if isinstance(pooling, Sequence) and not isinstance(pooling, str) else [pooling]
    are_supported = all(isinstance(mode, str) and mode in POOLING_MODES for mode in modes)
    allowed_values = ", ".join(f'"{mode}"' for mode in POOLING_MODES)
    is_valid = modes and are_supported and len(set(modes)) == len(modes)
    require(is_valid, "pooling", f"one of {allowed_values}, or a list of several", pooling)
    return modes


def pool(backbone: Backbone, modes: Sequence[str]) -> Tensor:
    """Return a backbone's token vectors, pooled with each mode and concatenated, symbolic (B, H · len(modes))."""
    inputs = backbone.input
    mask = backbone.padding_mask(inputs)  # (B, T)
    if [*modes] == ["cls"]:
        first_positions = ops.zeros_like(mask[:, :1], dtype="int32")  # (B, 1)
        return backbone.vectors_at(inputs, first_positions)[:, 0]
    return pool_sequence(backbone(inputs)["sequence_output"], mask, modes, backbone.dtype_policy)


def pool_sequence(sequence: Tensor, mask: Tensor, modes: Sequence[str], dtype: keras.DTypePolicy) -> Tensor:
    """Return token vectors, pooled with each mode and concatenated, symbolic (B, H · len(modes)).

    Args:
        sequence: symbolic vectors of tokens, float (B, T, H).
        mask: symbolic padding mask, (B, T), 1 for tokens and 0 for padding.
        modes: poolings, as returned by `check_pooling`.
        dtype: dtype policy.
    """
    pooled_vectors = []
    for mode in modes:
        if mode == "cls":
            pooled_vectors.append(sequence[:, 0])
        else:
            name = "pooler" if len(modes) == 1 else f"pooler_{mode}"
            pooled_vectors.append(_POOLERS[mode](dtype=dtype, name=name)(sequence, mask))
    return pooled_vectors[0] if len(pooled_vectors) == 1 else ops.concatenate(pooled_vectors, axis=-1)


def check_projection(projection: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Check the `projection` of a task, and return its layers with all their settings.

    Raises:
        ValueError: If `projection` is not a list or has too many layers, or if a layer is unknown or has an invalid
            setting; the message names the first such layer.
    """
    layers = () if projection is None else projection
    if not isinstance(layers, Sequence) or isinstance(layers, str) or len(layers) > _MAX_LAYERS:
        raise ValueError(f"`projection` must be a list of at most {_MAX_LAYERS} layers, got {projection!r:.100}.")
    return [_check_layer(layer, f"projection[{i}]") for i, layer in enumerate(layers)]


def _check_layer(layer: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Check a layer of a projection, called `name` in messages, and return it with defaults for missing settings."""
    kind = layer.get("kind") if isinstance(layer, Mapping) else None
    if not isinstance(kind, str) or kind not in _SETTINGS:
        allowed_values = ", ".join(f'"{kind}"' for kind in _SETTINGS)
        raise ValueError(f"`{name}` must be a dict whose `kind` is one of {allowed_values}, got {layer!r:.100}.")
    settings = {"kind": kind, **_SETTINGS[kind], **layer}
    if unknown_settings := settings.keys() - _SETTINGS[kind].keys() - {"kind"}:
        raise ValueError(f"`{name}` has the unknown setting {sorted(unknown_settings)[0]!r:.60} for {kind!r}.")
    if missing_settings := [setting for setting, value in settings.items() if value is _REQUIRED]:
        raise ValueError(f"`{name}` lacks {missing_settings[0]!r}, which {kind!r} needs.")
    if "units" in settings:
        require(is_integer(settings["units"], 1), f"{name}['units']", "a positive integer", settings["units"])
    if "rate" in settings:
        require_share(f"{name}['rate']", settings["rate"])
    if "activation" in settings:
        get_output_activation(settings["activation"])
        require(isinstance(settings["use_bias"], bool), f"{name}['use_bias']", "a bool", settings["use_bias"])
    return settings


def project(vectors: Tensor, projection: Sequence[Mapping[str, Any]], backbone: Backbone) -> Tensor:
    """Apply the layers of a projection, as returned by `check_projection`, to symbolic vectors (B, H)."""
    dtype = backbone.dtype_policy
    for layer_index, layer in enumerate(projection):
        name = f"projection_{layer_index}"
        if layer["kind"] == "dense":
            dense = keras.layers.Dense(
                layer["units"],
                activation=get_output_activation(layer["activation"]),
                use_bias=layer["use_bias"],
                kernel_initializer=TruncatedNormal(stddev=getattr(backbone.config, "initializer_range", 0.02)),
                dtype=dtype,
                name=name,
            )
            vectors = dense(vectors)
        elif layer["kind"] == "layer_norm":
            vectors = LayerNorm(epsilon=_EPSILON, dtype=dtype, name=name)(vectors)
        elif layer["kind"] == "dropout":
            vectors = Dropout(layer["rate"], dtype=dtype, name=name)(vectors)
        elif layer["kind"] == "truncate":
            vectors = vectors[:, : layer["units"]]
        else:
            vectors = unit_vectors(vectors)
    return vectors
