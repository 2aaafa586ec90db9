"""Published configurations with small numbers in place of the models' sizes, and models of transformers for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.checkpoints.family_names import names_in_transformers
from lmzoo.registry.family import Family

# Primes where possible; no other model has this number or width of heads.
SIZES = {
    "vocabulary_size": 131,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 42,
    "intermediate_dim": 53,
    "max_sequence_length": 67,
    "embedding_dim": 13,
    "decoder_layers": 1,
    "decoder_heads": 7,
    "decoder_intermediate_dim": 59,
}
# Sizes in the options of bilm-tf.
_OPTIONS = {"lstm.dim": 11, "lstm.projection_dim": 7, "char_cnn.filters": [[1, 5], [2, 3]], "char_cnn.embedding.dim": 4}


def shrink(config: Mapping[str, Any], family: Family, format: str) -> dict[str, Any]:
    """Replace the sizes in a configuration, and token ids that would be outside of the vocabulary."""
    if format.startswith("bilm"):
        return _shrink_options(config)
    table = family.checkpoints[format].config
    small = dict(config)
    for key in small.keys() & {*table.keys, *table.aliases}:
        argument = table.keys[table.aliases.get(key, key)]
        if argument in SIZES and small[key] is not None:
            small[key] = SIZES[argument] + table.shifts.get(argument, 0)
    for key, value in small.items():
        if key.endswith("token_id") and isinstance(value, int):
            small[key] = min(value, SIZES["vocabulary_size"] - 1)
    if "d_head" in small:
        small["d_head"] = SIZES["hidden_dim"] // SIZES["num_heads"]
    return small


def _shrink_options(options: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    return {
        key: _shrink_options(value, f"{before}{key}.") if isinstance(value, dict) else _OPTIONS.get(before + key, value)
        for key, value in options.items()
    }


def write_peer(config: Mapping[str, Any], family: Family, directory: Path) -> Any:
    """Save a random transformers model of a configuration, next to the configuration itself."""
    import torch
    import transformers
    from safetensors.torch import save_file

    names = names_in_transformers(family)
    settings = {
        key: value for key, value in config.items() if (key, names.model_type) != ("max_position_embeddings", "xlnet")
    }
    torch.manual_seed(1409)
    model = getattr(transformers, names.architecture(None))(
        getattr(transformers, f"{names.prefix}Config").from_dict(settings)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, directory / "model.safetensors")
    return model


def batch_of(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return padded sequences for a backbone with these inputs."""
    random = np.random.default_rng(23)
    lengths = np.array([[11], [7], [3]])
    mask = (np.arange(11) < lengths).astype("int32")
    batch = {}
    for name in inputs:
        if name.endswith("padding_mask"):
            batch[name] = mask
        elif name == "segment_ids":
            batch[name] = (np.arange(11) >= lengths // 2).astype("int32")
        else:  # RoBERTa counts positions by the id of padding, 1
            batch[name] = np.where(mask > 0, random.integers(2, SIZES["vocabulary_size"] - 1, mask.shape), 1).astype(
                "int32"
            )
    return batch


def hidden_states_of(model: Any, batch: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the hidden states of a transformers model, the encoder's before the decoder's."""
    import torch

    names = {
        "token_ids": "input_ids",
        "padding_mask": "attention_mask",
        "segment_ids": "token_type_ids",
        "decoder_token_ids": "decoder_input_ids",
        "decoder_padding_mask": "decoder_attention_mask",
    }
    with torch.no_grad():
        inputs = {names[name]: torch.tensor(values, dtype=torch.long) for name, values in batch.items()}
        outputs = model(**inputs, output_hidden_states=True)
    states = (outputs.get(name) for name in ("encoder_hidden_states", "decoder_hidden_states", "hidden_states"))
    return [state.numpy() for layers in states for state in layers or ()]
