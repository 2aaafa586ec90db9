"""Checkpoints of fairseq: `model.pt`, which also holds the arguments of the training command, and `dict.txt`."""

from __future__ import annotations

from collections.abc import Mapping

from lmzoo.checkpoints.checkpoint import Checkpoint, StoredHead, find_family, read_arguments
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
    parts = stored.extra.get("cfg")  # of newer files
    options = stored.extra.get("args") or (parts.get("model") if isinstance(parts, Mapping) else None)
    if not isinstance(options, Mapping):
        raise PresetError(f"{file} holds no arguments (`args`), which give the model's size.")
    tensors = without_wrappers(stored)

    def read(family: Family) -> Checkpoint:
        words = [name for name in tensors.names() if name.endswith(_WORD_TABLE)]
        if len(words) != 1:
            raise PresetError(f"{file} is not fairseq's {family.name}: it lacks '…{_WORD_TABLE}'.")
        size = tensors.shape(words[0])[0]
        # The options that the table does not list are for training.
        arguments = read_arguments(family, "fairseq", options, file, ignore_unknown=True, vocabulary_size=size)
        return Checkpoint(files, "fairseq", family, arguments, LazyTensors(lambda: tensors), lambda: _head(tensors))

    return find_family("fairseq", read, files.directory)


def _head(tensors: TensorFile) -> StoredHead:
    """Return the head in a checkpoint."""
    outputs = [
        name for name in tensors.names() if name.endswith(".out_proj.weight") and "classification_heads." in name
    ]
    if len(outputs) == 1:
        return StoredHead("classification", lambda kind: {"num_classes": tensors.shape(outputs[0])[0]})
    return StoredHead("masked_lm")
