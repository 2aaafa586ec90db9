"""Folders of Sentence Transformers, written by its own classes, or without them where it is not installed."""

from __future__ import annotations

import functools
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.checkpoints.formats.safetensors import write_safetensors
from lmzoo.models import TextEmbedder
from lmzoo.presets.converting import save_checkpoint
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task
from lmzoo.text import Preprocessor

WIDTH = families()["bert"].tiny.hidden_dim
OLD = "sentence_transformers.models"
TEXTS = ["good film", "the plot was never dull .", "a fine film !", "bad", "very very bad plot , dull film", "is", ""]
PAIRS = [*itertools.pairwise(TEXTS)]


def transformer(folder: Path, name: str = "bert", length: int = 23) -> Path:
    """Write a tiny Transformer with random weights and its tokenizer in Hugging Face's format."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in make_files(name, length).items():
        (folder / file).write_bytes(content)
    return folder


@functools.cache
def make_files(name: str, length: int) -> dict[str, bytes]:
    """Return the files of `transformer`; building the model each time would take half the time of the tests."""
    family = families()[name]
    preprocessor = Preprocessor(tiny_preprocessor(family).tokenizer, family.packing, length)
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(tiny_backbone(family), folder, "hf", preprocessor=preprocessor, overwrite=True)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def peer(folder: Path, *modules: Any, name: str = "bert", length: int = 23, **settings: Any) -> Any:
    """Return a Sentence Transformers model with random weights that saved itself in `folder`."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer

    torch.manual_seed(1409)
    first = Transformer(str(transformer(folder.with_name(f"{folder.name}_plain"), name, length)))
    model = SentenceTransformer(modules=[first, *modules], device="cpu", **settings)
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    if model.tokenizer.pad_token is None:
        model.tokenizer.pad_token = model.tokenizer.eos_token or model.tokenizer.unk_token
    model.save(str(folder), create_model_card=False)
    return model


def load_with_sentence_transformers(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def write_folder(folder: Path, *modules: dict[str, Any], **settings: Any) -> Path:
    """Write a folder without Sentence Transformers: a Transformer, then `modules`: configurations and their `type`."""
    transformer(folder)
    entries = [{"idx": 0, "name": "0", "path": "", "type": f"{OLD}.Transformer"}]
    for number, module in enumerate(modules, 1):
        config = dict(module)
        kind = config.pop("type")
        path = f"{number}_{kind}"
        entries.append({"idx": number, "name": str(number), "path": path, "type": f"{OLD}.{kind}"})
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(config))
        write_weights(folder / path, config)
    (folder / "modules.json").write_text(json.dumps(entries))
    if settings:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def write_weights(folder: Path, config: dict[str, Any]) -> None:
    """Write random weights if the configuration describes a Dense or a LayerNorm."""
    rng = np.random.default_rng(1409)
    shapes = {}
    if "in_features" in config:
        shapes = {"linear.weight": (config["out_features"], config["in_features"])}
        shapes |= {"linear.bias": (config["out_features"],)} if config.get("bias", True) else {}
    if "dimension" in config:
        shapes = dict.fromkeys(("norm.weight", "norm.bias"), (config["dimension"],))
    if shapes:
        tensors = [(name, rng.normal(size=shape).astype("float32")) for name, shape in shapes.items()]
        write_safetensors(folder / "model.safetensors", tensors)


def pooling(mode: str = "mean_tokens", **more: Any) -> dict[str, Any]:
    return {"type": "Pooling", "word_embedding_dimension": WIDTH, f"pooling_mode_{mode}": True, **more}


def dense(width: int = WIDTH, units: int = 11, **more: Any) -> dict[str, Any]:
    return {"type": "Dense", "in_features": width, "out_features": units, **more}


def embedder(**arguments: Any) -> TextEmbedder:
    return tiny_task(TextEmbedder, families()["bert"], **arguments)


def edit(file: Path, **changes: Any) -> None:
    """Change keys of a JSON object in a file; the value ... removes a key."""
    stored = json.loads(file.read_text())
    stored.update(changes)
    file.write_text(json.dumps({key: value for key, value in stored.items() if value is not ...}))


def edit_entry(folder: Path, number: int, **changes: Any) -> None:
    """Change keys of an entry of `modules.json`."""
    file = folder / "modules.json"
    entries = json.loads(file.read_text())
    entries[number].update(changes)
    file.write_text(json.dumps(entries))
