"""Layouts of ModernBERT checkpoints from transformers 4 and 5 and from KerasHub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmzoo.checkpoints.config_table import ConfigTable, JsonObject, require_value
from lmzoo.checkpoints.engine import SAME, TRANSPOSED, Row, Transform, keras_layers, torch_modules
from lmzoo.checkpoints.family_names import Names
from lmzoo.checkpoints.hugging_face.checkpoint import (
    PREDICTING_TOKENS,
    add_prefixes,
    hugging_face_layout,
    own_config_table,
)
from lmzoo.checkpoints.keras_hub.checkpoint import IGNORED_KEYS, KerasHubLayout, number_first
from lmzoo.checkpoints.keras_hub.heads import HEAD_IGNORED, HEAD_PREFIX
from lmzoo.common.arguments import is_integer

_FULL = "full_attention"
_LOCAL = "sliding_attention"
_EVERY = "global_attn_every_n_layers"
# kind of attention -> version 4's key for the longest wavelength, and its default
_WAVELENGTHS = {_FULL: ("global_rope_theta", 160_000.0), _LOCAL: ("local_rope_theta", 10_000.0)}
# transformers' key -> lmzoo's key, and transformers' default
_CONFIG: dict[str, tuple[str, object]] = {
    "vocab_size": ("vocabulary_size", 50368),
    "num_hidden_layers": ("num_layers", 22),
    "num_attention_heads": ("num_heads", 12),
    "hidden_size": ("hidden_dim", 768),
    "intermediate_size": ("intermediate_dim", 1152),
    "attention_dropout": ("dropout", 0.0),
    "max_position_embeddings": ("max_sequence_length", 8192),
    "hidden_activation": ("activation", "gelu"),
    "norm_eps": ("layer_norm_epsilon", 1e-5),
    "initializer_range": ("initializer_range", 0.02),
    "local_attention": ("local_attention_window", 128),
}
_REWRITTEN = {
    _EVERY: "global_attention_every",
    "global_rope_theta": "rotary_max_wavelength",
    "local_rope_theta": "local_rotary_max_wavelength",
}
_IGNORED = (
    "classifier_pooling", "deterministic_flash_attn", "initializer_cutoff_factor", "layer_norm_eps",
    "layer_types", "reference_compile", "repad_logits_with_grad", "rope_parameters", "sliding_window",
    "sparse_pred_ignore_index", "sparse_prediction",
)  # fmt: skip
# Keys that matter only for heads -> the supported values.
_HEAD_VALUES = {"classifier_activation": ("gelu",), "classifier_bias": (False,)}
_TOKEN_HEAD_VALUES = {**_HEAD_VALUES, "decoder_bias": (True,)}
_CLASSIFYING = ("classification", "multiple_choice", "question_answering", "regression", "token_classification")
# Written as null, since transformers' default ids fit the published vocabulary but possibly no other.
_TOKEN_IDS = ("bos_token_id", "cls_token_id", "eos_token_id", "pad_token_id", "sep_token_id")
_PROJECTIONS = ("query", "key", "value")
_HEAD = {"dense": "head.dense", "layer_norm": "head.norm", "logits": "classifier"}


def _convert_to_version_4(config: JsonObject, file: Path | str) -> JsonObject:
    """Convert a configuration of transformers 5 to the keys of version 4."""
    interval = _derive_interval(config, file)
    wavelengths = {key: _derive_wavelength(config, file, kind) for kind, (key, _) in _WAVELENGTHS.items()}
    return {**config, **_derive_window(config, file), _EVERY: interval, **wavelengths}


def _derive_window(config: JsonObject, file: Path | str) -> JsonObject:
    """Return a dict that sets `local_attention`, the width of the window, to twice `sliding_window`.

    The dict is empty if the configuration has no `sliding_window`.

    Raises:
        PresetError: If `sliding_window` is not a positive integer, or not half of a stored `local_attention`.
    """
    half_window = config.get("sliding_window")
    if half_window is None:
        return {}
    window = config.get("local_attention", 2 * half_window if is_integer(half_window, 1) else None)
    is_half = is_integer(half_window, 1) and window == 2 * half_window
    require_value(is_half, file, "sliding_window", f"half of `local_attention`, which is {window}", half_window)
    return {"local_attention": window}


def _derive_interval(config: JsonObject, file: Path | str) -> Any:
    """Return the interval n between blocks that attend to all positions: blocks 0, n, 2·n and so on.

    Raises:
        PresetError: If `layer_types` does not list every block, with these blocks at equal intervals from block 0.
    """
    stored_interval = config.get(_EVERY, 3)
    layer_types = config.get("layer_types")
    if layer_types is None:
        return stored_interval
    requirement = f"{_FULL!r} for block 0 and after equal numbers of {_LOCAL!r}, one for each block"
    num_layers = config.get("num_hidden_layers", 22)
    require_value(
        isinstance(layer_types, list) and len(layer_types) == num_layers and num_layers > 0,
        file,
        "layer_types",
        requirement,
        layer_types,
    )
    global_indices = [index for index in range(1, num_layers) if layer_types[index] == _FULL]
    candidates = [stored_interval, *global_indices[:1], num_layers]
    for interval in (candidate for candidate in candidates if is_integer(candidate, 1)):
        if layer_types == [_LOCAL if index % interval else _FULL for index in range(num_layers)]:
            return interval
    require_value(False, file, "layer_types", requirement, layer_types)
    return None


def _derive_wavelength(config: JsonObject, file: Path | str, kind: str) -> Any:
    """Return the longest wavelength of the rotary positions for a kind of attention.

    Raises:
        PresetError: If `rope_parameters` is invalid, or scales rotary positions.
    """
    key, default_wavelength = _WAVELENGTHS[kind]
    wavelength = config.get(key, default_wavelength)
    rope_parameters = config.get("rope_parameters")
    if rope_parameters is None:
        return wavelength
    has_valid_kinds = isinstance(rope_parameters, dict) and rope_parameters.keys() <= _WAVELENGTHS.keys()
    require_value(has_valid_kinds, file, "rope_parameters", f"an object with {_FULL!r} and {_LOCAL!r}", rope_parameters)
    settings = rope_parameters.get(kind) or {}
    is_unscaled = isinstance(settings, dict) and settings.keys() <= {"rope_theta", "rope_type", "type"}
    is_unscaled = is_unscaled and all(settings.get(name, "default") == "default" for name in ("rope_type", "type"))
    name = f"rope_parameters.{kind}"
    require_value(is_unscaled, file, name, "an object with a `rope_theta` and the `rope_type` 'default'", settings)
    return settings.get("rope_theta", wavelength)


def _map_kernels(layer: str, tensor: str, names: tuple[str, ...], transform: Transform) -> dict[str, Row]:
    """Return table rows for the kernels of several layers that a file stores in one tensor per block.

    Args:
        layer: prefix of the layers' paths in a block, such as "attention/".
        tensor: template of the tensor's name.
        names: names of the layers, in the order of their kernels in the tensor.
        transform: conversion between the stored kernels and lmzoo's.
    """
    return {f"block_{{i}}/{layer}{name}/kernel": Row(tensor, transform, index) for index, name in enumerate(names)}


def _map_head(layer: str) -> dict[str, str]:
    """Return the names of a head's modules in transformers, by layer path; `layer` is the prefix of the paths."""
    return {f"{layer}/{name}": module for name, module in _HEAD.items()}


HUGGING_FACE = hugging_face_layout(
    names=Names("ModernBert", "modernbert", "model", tokenizer=""),
    config=own_config_table(
        _CONFIG,
        rewrite=_convert_to_version_4,
        rewritten=_REWRITTEN,
        training={"embedding_dropout": "dropout", "mlp_dropout": "dropout"},
        allowed={
            "attention_bias": (False,),
            "causal_mask": (False,),
            "mlp_bias": (False,),
            "norm_bias": (False,),
            # transformers does not read the key: positions are always rotary, whatever published files call them.
            "position_embedding_type": ("absolute", "sans_pos", None),
            "rope_scaling": (None,),
        },
        ignored=(*_IGNORED, *_TOKEN_HEAD_VALUES),
        written=dict.fromkeys(_TOKEN_IDS),
    ),
    parts=("embeddings", "layers", "final_norm"),
    backbone={
        **torch_modules(
            {
                "embeddings/token_embedding": "embeddings.tok_embeddings",
                "embeddings/layer_norm": "embeddings.norm",
                **add_prefixes(
                    "block_{i}",
                    "layers.{i}",
                    {
                        "attention/output_dense": "attn.Wo",
                        "attention_layer_norm": "attn_norm",
                        "output_dense": "mlp.Wo",
                        "output_layer_norm": "mlp_norm",
                    },
                ),
                "final_norm": "final_norm",
            }
        ),
        **_map_kernels("attention/", "layers.{i}.attn.Wqkv.weight", _PROJECTIONS, TRANSPOSED),
        **_map_kernels("", "layers.{i}.mlp.Wi.weight", ("intermediate_dense", "gate_dense"), TRANSPOSED),
    },
    masked_lm=("head.dense", "head.norm", "decoder.bias"),
    head_activation="gelu",
    head_values={
        **dict.fromkeys(_CLASSIFYING, _HEAD_VALUES),
        **dict.fromkeys(PREDICTING_TOKENS, _TOKEN_HEAD_VALUES),
    },
    classifier=_map_head("classifier"),
    tokens=_map_head("classifier"),
    answers=_map_head("span_head"),
    pooling="classifier_pooling",
    copies={"decoder.weight": "embeddings.tok_embeddings.weight"},
)

_BLOCK = "modern_bert_encoder_layer"
_BLOCK_LAYERS = {
    "attention/output_dense": "attn/output_dense",
    "attention_layer_norm": "attn_norm",
    "intermediate_dense": "mlp/wi_0",
    "gate_dense": "mlp/wi_1",
    "output_dense": "mlp/wo",
    "output_layer_norm": "mlp_norm",
}
_SHARED_KEYS = (
    "vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim", "layer_norm_epsilon",
    "local_attention_window", "rotary_max_wavelength", "local_rotary_max_wavelength",
)  # fmt: skip

# KerasHub 0.33's layout without its classifier, since the head there has a tanh and biases, but no LayerNorm.
KERAS_HUB = KerasHubLayout(
    name="KerasHub",
    block=_BLOCK,
    head_epsilon=None,
    config=ConfigTable(
        keys={**{key: key for key in _SHARED_KEYS}, "global_attn_every_n_layers": "global_attention_every"},
        omitted=("dropout", "max_sequence_length"),
        ignored=IGNORED_KEYS,
    ),
    backbone={
        **keras_layers(
            {
                "embeddings/token_embedding": "reversible_embedding",
                "embeddings/layer_norm": "layer_normalization",
                **{f"block_{{i}}/{layer}": f"{_BLOCK}_{{i}}/{stored}" for layer, stored in _BLOCK_LAYERS.items()},
                "final_norm": "layer_normalization_1",
            }
        ),
        **_map_kernels("attention/", f"layers/{_BLOCK}_{{i}}/attn/qkv/vars/0", _PROJECTIONS, SAME),
    },
    heads={
        "masked_lm": {
            **keras_layers(
                {"masked_lm_head/dense": "dense", "masked_lm_head/layer_norm": "layer_normalization"}, HEAD_PREFIX
            ),
            "masked_lm_head/output_bias": Row(f"{HEAD_PREFIX}vars/0"),
        }
    },
    ignored=HEAD_IGNORED,
    aliases=number_first(_BLOCK),
)
