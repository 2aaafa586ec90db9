"""Which format, and which family, a directory holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmzoo.checkpoints import google, hugging_face
from lmzoo.checkpoints.bilm import find_bilm
from lmzoo.checkpoints.checkpoint import Checkpoint
from lmzoo.checkpoints.fairseq import find_fairseq
from lmzoo.checkpoints.keras_hub import find_keras_hub
from lmzoo.checkpoints.model_garden import ModelGardenCheckpoint
from lmzoo.models.family import families
from lmzoo.presets.store import CONFIG_FILE, PresetError, read_json


def find_checkpoint(directory: Path) -> Checkpoint | None:
    """The checkpoint of another library in a directory; None if there is none that we know.

    Raises:
        PresetError: if it is of a family, or has a configuration, that our models cannot follow.
    """
    if (directory / CONFIG_FILE).is_file():
        config = read_json(directory, CONFIG_FILE)
        if "model_type" in config:
            return _hugging_face(directory, config)
        return find_keras_hub(directory, config)
    if found := find_bilm(directory) or find_fairseq(directory):
        return found
    if configs := sorted(path for path in directory.glob("*_config.json") if path.name in _GOOGLE):
        return _google(directory, configs[0])
    return None


_GOOGLE = {"bert_config.json": "bert", "albert_config.json": "albert"}


def _hugging_face(directory: Path, config: dict[str, Any]) -> Checkpoint:
    known = {name: family for name, family in families().items() if "hf" in family.checkpoints}
    if (name := config["model_type"]) not in known:
        raise PresetError(
            f"{directory / CONFIG_FILE}: models of type {name!r} are not known; known are {', '.join(known)}."
        )
    family = known[name]
    arguments = family.checkpoints["hf"].config.read(config, directory / CONFIG_FILE)
    head, head_arguments = hugging_face.head_of(directory, config)
    return Checkpoint(
        directory, "hf", family, arguments, lambda: hugging_face.open_tensors(directory), head, head_arguments
    )


def _google(directory: Path, file: Path) -> Checkpoint:
    family = families()[_GOOGLE[file.name]]
    arguments = family.checkpoints["google"].config.read(read_json(directory, file.name), file)
    tensors = google.open_tensors(directory)
    if isinstance(tensors, ModelGardenCheckpoint) and arguments["activation"] == "gelu":
        arguments["activation"] = "gelu_tanh"  # its code computes the approximation
    head, head_arguments = google.head_of(tensors)
    return Checkpoint(
        directory, "google", family, arguments, lambda: google.open_tensors(directory), head, head_arguments
    )
