"""Checkpoints of fairseq: `dict.txt`, and `model.pt` with the weights and the arguments of the training command."""

from __future__ import annotations

from collections.abc import Mapping

from lmzoo.checkpoints.checkpoint import Checkpoint, StoredHead, find_family, read_arguments
from lmzoo.checkpoints.formats.tensor_file import LazyTensors, TensorFile, strip_wrappers
from lmzoo.checkpoints.formats.torch import TorchFile
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import JsonFiles
from lmzoo.registry.family import Family

_WEIGHTS_FILE = "model.pt"
_WORD_TABLE = "sentence_encoder.embed_tokens.weight"


def find_fairseq(files: JsonFiles) -> Checkpoint | None:
    """Open the fairseq checkpoint in a directory, or return None if it has no `model.pt`.

    Raises:
        PresetError: If the file is damaged or lacks the training command's arguments, or the family or variant of the
            model is not supported.
    """
    file = files.directory / _WEIGHTS_FILE
    if not file.is_file():
        return None
    torch_file = TorchFile(file)
    config = torch_file.extra.get("cfg")  # newer files have "cfg" in place of "args"
    options = torch_file.extra.get("args") or (config.get("model") if isinstance(config, Mapping) else None)
    if not isinstance(options, Mapping):
        raise PresetError(f"{file} holds no arguments (`args`), which give the model's size.")
    tensors = strip_wrappers(torch_file)

    def read_as(family: Family) -> Checkpoint:
        embedding_names = [name for name in tensors.names() if name.endswith(_WORD_TABLE)]
        if len(embedding_names) != 1:
            raise PresetError(f"{file} is not fairseq's {family.name}: it lacks '…{_WORD_TABLE}'.")
        vocabulary_size = tensors.shape(embedding_names[0])[0]
        # Options outside the table only affect training.
        arguments = read_arguments(
            family, "fairseq", options, file, ignore_unknown=True, vocabulary_size=vocabulary_size
        )
        return Checkpoint(
            files, "fairseq", family, arguments, LazyTensors(lambda: tensors), lambda: _read_head(tensors)
        )

    return find_family("fairseq", read_as, files.directory)


def _read_head(tensors: TensorFile) -> StoredHead:
    """Return the stored head: the classification head or, if there is none or several, a masked language modeling head.

    A classification head with one output is a regressor.
    """
    output_kernels = [
        name for name in tensors.names() if name.endswith(".out_proj.weight") and "classification_heads." in name
    ]
    if len(output_kernels) != 1:
        return StoredHead("masked_lm")
    shape = tensors.shape(output_kernels[0])
    if shape[:1] == (1,):
        return StoredHead("regression")
    return StoredHead("classification", lambda kind: {"num_classes": shape[0]})
