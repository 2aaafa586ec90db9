"""Writing of Sentence Transformers checkpoints: `modules.json`, settings, and a directory for each module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.checkpoints.formats.safetensors import write_safetensors
from lmzoo.checkpoints.formats.tensor_file import Arrays
from lmzoo.checkpoints.sentence_transformers.checkpoint import LENGTH_FILES, SETTINGS_FILE
from lmzoo.checkpoints.sentence_transformers.modules import LAYER_CLASSES, MAX_MODULES, MODULES_FILE, POOLING_MODES
from lmzoo.checkpoints.tokenizers.classes import SETTINGS_FILE as TOKENIZER_SETTINGS_FILE
from lmzoo.checkpoints.tokenizers.classes import get_family_packing
from lmzoo.checkpoints.torch_activations import write_activation
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE, read_json, write_json
from lmzoo.registry.family import get_family
from lmzoo.search.nearest import SIMILARITIES
from lmzoo.text import Preprocessor

_PREFIX = "modules."
_PACKAGE = "sentence_transformers.models"  # every version of Sentence Transformers reads this spelling
# Files and directories that Sentence Transformers adds to a transformers checkpoint.
SENTENCE_FILES = {
    MODULES_FILE,
    SETTINGS_FILE,
    *LENGTH_FILES,
    *(f"{i}_{name}" for i in range(1, MAX_MODULES) for name in ("Pooling", *LAYER_CLASSES.values())),
}


def check_embedder(model: Any, preprocessor: Preprocessor | None, to: str) -> None:
    """Check that a format can hold an embedder.

    Args:
        model: `TextEmbedder` to write.
        preprocessor: Preprocessor to write, or None.
        to: Name of the format, "hf" or "keras_hub".

    Raises:
        PresetError: If the format cannot express an argument; the message names the argument.
    """
    if to != "hf":  # KerasHub has neither argument
        for name in ("projection", "default_prompt"):
            if getattr(model, name):
                raise PresetError(f"The format {to!r} cannot express `{name}={getattr(model, name)!r:.100}`.")
        if model.similarity != SIMILARITIES[0]:
            raise PresetError(f"The format {to!r} cannot express `similarity={model.similarity!r}`.")
        return
    layers = _list_layers(model)
    if model.normalize and model.projection and model.projection[-1]["kind"] == "truncate":
        raise PresetError(
            "The format 'hf' cannot express `normalize=True` after `truncate`: load the model with `normalize=False`, "
            "which changes no cosine similarity."
        )
    for layer in layers:
        if layer["kind"] == "truncate":
            raise PresetError("The format 'hf' can express `truncate` only at the end of a `projection`.")
        if layer["kind"] == "dense":
            write_activation(layer["activation"])
    if preprocessor is None:
        return
    family = get_family(model.backbone)
    end = preprocessor.packing.end
    is_default = end == get_family_packing(family, preprocessor.tokenizer).end
    if end and is_default and family.backbone.causal:
        raise PresetError(
            f"The format 'hf' cannot express {end!r} at the end of a text, since tokenizers of decoders add no special "
            'tokens there: pass a `preprocessor=` whose packing has `end=""`.'
        )


def write_sequence_length(target: Path, preprocessor: Preprocessor) -> None:
    """Write a preprocessor's sequence length, and add the padding token to the tokenizer's settings if they lack it."""
    write_json(target, LENGTH_FILES[0], {"max_seq_length": preprocessor.sequence_length, "do_lower_case": False})
    settings = read_json(target, TOKENIZER_SETTINGS_FILE)
    tokenizer = preprocessor.tokenizer
    if settings.get("pad_token") is None:
        write_json(target, TOKENIZER_SETTINGS_FILE, {**settings, "pad_token": tokenizer.vocabulary[tokenizer.pad_id]})


def write_modules(target: Path, model: Any, weights: dict[str, np.ndarray]) -> None:
    """Write the modules and the settings of an embedder, without its Transformer and tokenizer.

    Args:
        target: Directory to write.
        model: `TextEmbedder` to write.
        weights: Tensors of the layers after pooling, by name, as collected by `split_off_modules`.
    """
    entries = [_make_entry(0, "", "Transformer"), _make_entry(1, "1_Pooling", "Pooling")]
    modes = [model.pooling] if isinstance(model.pooling, str) else list(model.pooling)
    hidden_dim = model.backbone.config.hidden_dim
    _write_config(target / "1_Pooling", {"word_embedding_dimension": hidden_dim, **_make_pooling_config(modes)})
    width = hidden_dim * len(modes)
    for layer_number, layer in enumerate(_list_layers(model)):
        name = LAYER_CLASSES[layer["kind"]]
        folder = target / f"{layer_number + 2}_{name}"
        entries.append(_make_entry(layer_number + 2, folder.name, name))
        _write_config(folder, _make_layer_config(layer, width))
        width = layer.get("units", width)
        prefix = f"{_PREFIX}{layer_number}."
        module_weights = [(key.removeprefix(prefix), array) for key, array in weights.items() if key.startswith(prefix)]
        if module_weights:
            write_safetensors(folder / "model.safetensors", module_weights)
    write_json(target, MODULES_FILE, entries)
    settings = {
        "model_type": "SentenceTransformer",
        "prompts": dict(model.prompts),
        "default_prompt_name": model.default_prompt,
        "similarity_fn_name": model.similarity,
    }
    if (truncated_width := _find_truncated_width(model)) is not None:
        settings["truncate_dim"] = truncated_width
    write_json(target, SETTINGS_FILE, settings)


def split_off_modules(tensors: Arrays, collected: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of the Transformer, and collect the tensors of the modules after it.

    Args:
        tensors: Pairs of a name and an array.
        collected: Dict to which the tensors of the modules are added, by name.
    """
    for name, array in tensors:
        if name.startswith(_PREFIX):
            collected[name] = array
        else:
            yield name, array


def _find_truncated_width(model: Any) -> int | None:
    last_layer = model.projection[-1] if model.projection and not model.normalize else {}
    return last_layer["units"] if last_layer.get("kind") == "truncate" else None


def _list_layers(model: Any) -> list[dict[str, Any]]:
    """Return the layers to write after pooling, with a final normalization.

    A final truncation is left out, since it is written to the settings as `truncate_dim`.
    """
    layers = [dict(layer) for layer in model.projection]
    if _find_truncated_width(model) is not None:
        return layers[:-1]
    return [*layers, {"kind": "normalize"}] if model.normalize else layers


def _make_entry(module_index: int, path: str, name: str) -> dict[str, object]:
    return {"idx": module_index, "name": str(module_index), "path": path, "type": f"{_PACKAGE}.{name}"}


def _make_pooling_config(modes: list[str]) -> dict[str, object]:
    """Return the configuration of Pooling, in the newer form only if the order of the modes requires it."""
    if modes != [mode for mode in POOLING_MODES if mode in modes]:
        return {"pooling_mode": modes, "include_prompt": True}
    return {**{key: mode in modes for mode, key in POOLING_MODES.items()}, "include_prompt": True}


def _make_layer_config(layer: dict[str, Any], width: int) -> dict[str, object]:
    if layer["kind"] == "dense":
        return {
            "in_features": width,
            "out_features": layer["units"],
            "bias": layer["use_bias"],
            "activation_function": write_activation(layer["activation"]),
        }
    if layer["kind"] == "layer_norm":
        return {"dimension": width}
    return {"dropout": layer["rate"]} if layer["kind"] == "dropout" else {}


def _write_config(folder: Path, config: dict[str, object]) -> None:
    folder.mkdir()
    write_json(folder, CONFIG_FILE, config)
