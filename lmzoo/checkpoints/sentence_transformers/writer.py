"""Writes the files of Sentence Transformers: next to a model in transformers' format, and in folders of modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.checkpoints.formats.safetensors import write_safetensors
from lmzoo.checkpoints.formats.tensor_file import Arrays
from lmzoo.checkpoints.sentence_transformers.checkpoint import LENGTH_FILES, SETTINGS_FILE
from lmzoo.checkpoints.sentence_transformers.modules import LAYER_CLASSES, MODULES_FILE, MOST_MODULES, POOLING_MODES
from lmzoo.checkpoints.tokenizers.classes import SETTINGS_FILE as TOKENIZER_SETTINGS_FILE
from lmzoo.checkpoints.torch_activations import write_activation
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE, read_json, write_json
from lmzoo.registry.family import family_of
from lmzoo.text import Preprocessor

_PREFIX = "modules."
_PACKAGE = "sentence_transformers.models"  # every version of Sentence Transformers reads this spelling
# All that a folder of Sentence Transformers may hold in addition to what transformers writes.
SENTENCE_FILES = {
    MODULES_FILE,
    SETTINGS_FILE,
    *LENGTH_FILES,
    *(f"{i}_{name}" for i in range(1, MOST_MODULES) for name in ("Pooling", *LAYER_CLASSES.values())),
}


def check_embedder(model: Any, preprocessor: Preprocessor | None, to: str) -> None:
    """Check, before anything is written, that a format can hold an embedder.

    Raises:
        PresetError: Naming the argument that it cannot express.
    """
    if to != "hf":  # KerasHub's has neither
        for name in ("projection", "default_prompt"):
            if getattr(model, name):
                raise PresetError(f"The format {to!r} cannot express `{name}={getattr(model, name)!r:.100}`.")
        return
    layers = _layers(model)
    for layer in layers:
        if layer["kind"] == "truncate":
            raise PresetError("The format 'hf' can express `truncate` only at the end of a `projection`.")
        if layer["kind"] == "dense":
            write_activation(layer["activation"])
    is_own = preprocessor is not None and preprocessor.packing.end == family_of(model.backbone).packing.end
    if preprocessor is not None and is_own and getattr(model.backbone, "causal", False) and preprocessor.packing.end:
        raise PresetError(
            f"The format 'hf' cannot express {preprocessor.packing.end!r} at the end of a text, since tokenizers of "
            f'decoders add no special tokens there: pass a `preprocessor=` whose packing has `end=""`.'
        )


def write_length(target: Path, preprocessor: Preprocessor) -> None:
    """Write the most tokens of a text and, for tokenizers that usually have none, the token to fill batches with."""
    write_json(target, LENGTH_FILES[0], {"max_seq_length": preprocessor.sequence_length, "do_lower_case": False})
    settings = read_json(target, TOKENIZER_SETTINGS_FILE)
    tokenizer = preprocessor.tokenizer
    if settings.get("pad_token") is None:
        write_json(target, TOKENIZER_SETTINGS_FILE, {**settings, "pad_token": tokenizer.vocabulary[tokenizer.pad_id]})


def write_modules(target: Path, model: Any, weights: dict[str, np.ndarray]) -> None:
    """Write all files of an embedder other than its Transformer's and its tokenizer's.

    Args:
        target: The folder.
        model: The embedder.
        weights: The tensors of the layers after pooling, by name, as `without_modules` collected them.
    """
    entries = [_entry(0, "", "Transformer"), _entry(1, "1_Pooling", "Pooling")]
    modes = [model.pooling] if isinstance(model.pooling, str) else list(model.pooling)
    hidden_dim = model.backbone.config.hidden_dim
    _write_config(target / "1_Pooling", {"word_embedding_dimension": hidden_dim, **_pooling(modes)})
    width = hidden_dim * len(modes)
    for number, layer in enumerate(_layers(model)):
        name = LAYER_CLASSES[layer["kind"]]
        folder = target / f"{number + 2}_{name}"
        entries.append(_entry(number + 2, folder.name, name))
        _write_config(folder, _config(layer, width))
        width = layer.get("units", width)
        prefix = f"{_PREFIX}{number}."
        own = [(key.removeprefix(prefix), array) for key, array in weights.items() if key.startswith(prefix)]
        if own:
            write_safetensors(folder / "model.safetensors", own)
    write_json(target, MODULES_FILE, entries)
    settings = {
        "model_type": "SentenceTransformer",
        "prompts": dict(model.prompts),
        "default_prompt_name": model.default_prompt,
    }
    if (truncation := _truncation(model)) is not None:
        settings["truncate_dim"] = truncation
    write_json(target, SETTINGS_FILE, settings)


def without_modules(tensors: Arrays, collected: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of the Transformer, and collect those of the modules after it."""
    for name, array in tensors:
        if name.startswith(_PREFIX):
            collected[name] = array
        else:
            yield name, array


def _truncation(model: Any) -> int | None:
    last = model.projection[-1] if model.projection and not model.normalize else {}
    return last["units"] if last.get("kind") == "truncate" else None


def _layers(model: Any) -> list[dict[str, Any]]:
    """Return the layers after pooling, but for a truncation at the end, which is no module."""
    layers = [dict(layer) for layer in model.projection]
    if _truncation(model) is not None:
        return layers[:-1]
    return [*layers, {"kind": "normalize"}] if model.normalize else layers


def _entry(number: int, path: str, name: str) -> dict[str, object]:
    return {"idx": number, "name": str(number), "path": path, "type": f"{_PACKAGE}.{name}"}


def _pooling(modes: list[str]) -> dict[str, object]:
    """Return the keys that every version reads, unless the order of several modes needs the newer one."""
    if modes != [mode for mode in POOLING_MODES if mode in modes]:
        return {"pooling_mode": modes, "include_prompt": True}
    return {**{key: mode in modes for mode, key in POOLING_MODES.items()}, "include_prompt": True}


def _config(layer: dict[str, Any], width: int) -> dict[str, object]:
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
