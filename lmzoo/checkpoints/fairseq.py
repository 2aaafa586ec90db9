"""Checkpoints of fairseq: `model.pt`, which also holds the arguments of the training command, and `dict.txt`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lmzoo.checkpoints.checkpoint import Checkpoint, StoredHead, find_family, read_arguments
from lmzoo.checkpoints.config_table import JsonObject
from lmzoo.checkpoints.formats.tensor_file import LazyTensors, TensorFile, without_wrappers
from lmzoo.checkpoints.formats.torch import TorchFile
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import JsonFiles
from lmzoo.registry.family import Family

_WEIGHTS_FILE = "model.pt"
_WORD_TABLE = "sentence_encoder.embed_tokens.weight"


def find_fairseq(files: JsonFiles) -> Checkpoint | None:
    """Return the checkpoint in a directory with `model.pt`, or None if there is no such file.

    Raises:
        PresetError: If it is of another family, or a variant that our model does not support.
    """
    file = files.directory / _WEIGHTS_FILE
    if not file.is_file():
        return None
    stored = TorchFile(file)
    options = _options(stored, file)
    tensors = without_wrappers(stored)

    def read(family: Family) -> Checkpoint:
        table = family.checkpoints["fairseq"].config
        model_keys = {*table.keys, *table.allowed, *table.training}  # the other arguments are for training
        model_options = {key: value for key, value in options.items() if key in model_keys}
        words = [name for name in tensors.names() if name.endswith(_WORD_TABLE)]
        if len(words) != 1:
            raise PresetError(f"{file} is not fairseq's {family.name}: it lacks '…{_WORD_TABLE}'.")
        arguments = read_arguments(family, "fairseq", model_options, file, vocabulary_size=tensors.shape(words[0])[0])
        return Checkpoint(files, "fairseq", family, arguments, LazyTensors(lambda: tensors), lambda: _head(tensors))

    return find_family("fairseq", read, files.directory)


def _options(tensors: TorchFile, file: Path) -> JsonObject:
    parts = tensors.extra.get("cfg")  # of newer files
    options = tensors.extra.get("args") or (parts.get("model") if isinstance(parts, Mapping) else None)
    if not isinstance(options, Mapping):
        raise PresetError(f"{file} holds no arguments (`args`), which give the model's size.")
    return options


def _head(tensors: TensorFile) -> StoredHead:
    """Return the head in a checkpoint."""
    outputs = [
        name for name in tensors.names() if name.endswith(".out_proj.weight") and "classification_heads." in name
    ]
    if len(outputs) == 1:
        return StoredHead("classification", lambda kind: {"num_classes": tensors.shape(outputs[0])[0]})
    return StoredHead("masked_lm")
