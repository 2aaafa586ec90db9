"""Weights of transformers' TensorFlow classes, `tf_model.h5`, with the names and axes of its PyTorch classes."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lmzoo.checkpoints.formats.hdf5 import Hdf5File
from lmzoo.checkpoints.formats.sharded import tensors_in_files
from lmzoo.checkpoints.formats.tensor_file import Place, PlacedTensors, Shape, TensorFile
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import CONFIG_FILE

TENSORFLOW_FILES = ("tf_model.h5", "tf_model.h5.index.json")

_SHARD = re.compile(r"tf_model-\d{5}-of-\d{5}\.h5")
_KINDS = {"kernel": "weight", "embeddings": "weight", "gamma": "weight", "beta": "bias"}
# ALBERT's head uses the bias of the decoder. The file also holds an unused bias.
_RENAMED = {
    "predictions.decoder.bias": "predictions.bias",
    "predictions.decoder_bias": "predictions.bias",  # in a model whose vocabulary was resized
    "predictions.bias": "predictions.unused_bias",
}
_SAVE = (
    "where transformers 4 and tf-keras are installed, load the model into its class there, such as "
    "`TFBertForSequenceClassification`, and call `save_pretrained(folder)` on it. lmzoo reads that folder."
)


def open_tensorflow_model(directory: Path) -> TensorFile:
    """Open `tf_model.h5`, or its shards and their index, with PyTorch's tensor names and axes.

    Each name in the file begins with a layer and the class of the model, often numbered. Only the name tells whether to
    transpose a tensor, since square kernels have the same shape both ways. If several layers share a weight, the file
    holds a copy for each of them, and the copies must be equal.

    Args:
        directory: Directory of the files.

    Raises:
        PresetError: If a file is missing, truncated, not HDF5 or not written by transformers, or links to other files;
            or if copies of a weight differ in shape. Reading a tensor raises it if copies differ in value.
    """
    convert_name = functools.partial(_make_torch_name, scopes=1)
    # Close invalid files at once: an open HDF5 file would hide that it was replaced.
    with contextlib.ExitStack() as open_files:
        places = tensors_in_files(directory, TENSORFLOW_FILES, functools.partial(_open_file, open_files), convert_name)
        open_files.pop_all()
    single_file = directory / TENSORFLOW_FILES[0]
    return PlacedTensors(single_file if single_file.is_file() else directory, places)


def _open_file(open_files: contextlib.ExitStack, path: Path) -> dict[str, Place]:
    """Open one file and return its tensors by their PyTorch names.

    Args:
        open_files: Stack that closes the file.
        path: Path of the file.

    Raises:
        PresetError: If the file is damaged or not written by transformers, or copies of a weight differ in shape.
    """
    file = Hdf5File(path)
    open_files.callback(file.close)
    stored_names = list(file.names())
    is_shard = _SHARD.fullmatch(path.name) is not None
    _check_origin(path, stored_names, is_shard)
    names_by_weight: dict[str, list[str]] = {}
    for name in stored_names:
        # Shards have no layer groups, and keep the model's scope only in the names of shared layers.
        num_scopes = int("model." in name) if is_shard else 2
        copies = names_by_weight.setdefault(_make_torch_name(name, num_scopes), [])
        copies.append(name)
        if file.shape(name) != file.shape(copies[0]):
            raise PresetError(
                f"{path}: {name!r} has shape {file.shape(name)}, expected {file.shape(copies[0])}, the shape of "
                f"{copies[0]!r}: they are the same weight."
            )
    return {
        name: Place(
            file, copies[0], _make_torch_shape(copies[0], file.shape(copies[0])), functools.partial(_load, file, copies)
        )
        for name, copies in names_by_weight.items()
    }


def _load(file: TensorFile, names: Sequence[str], array: np.ndarray) -> np.ndarray:
    """Check that all copies of a weight are equal, and return the weight with PyTorch's axes.

    Args:
        file: File of the copies.
        names: Names of the copies in the file.
        array: Values of the first copy.

    Raises:
        PresetError: If two copies differ.
    """
    first_name, *other_names = names
    for name in other_names:
        if not np.array_equal(file.read(name), array, equal_nan=True):
            raise PresetError(f"{file.path}: {name!r} and {first_name!r} differ, but they are the same weight.")
    return (
        array.T
        if _get_variable_kind(first_name) == "kernel"
        else array.reshape(_make_torch_shape(first_name, array.shape))
    )


def _make_torch_name(tensor_name: str, scopes: int) -> str:
    """Convert a tensor name in the file, without its first `scopes` parts, to the name in PyTorch."""
    parts = tensor_name.removesuffix(":0").split("/")
    # `mlm___cls` is the module `cls`, which two layers share; `layer_._0` is an entry of a list.
    parts = [part.rpartition("___")[2].replace("_._", ".") for part in parts[min(scopes, len(parts) - 1) :]]
    name = ".".join([*parts[:-1], _KINDS.get(parts[-1], parts[-1])])
    return _RENAMED.get(name, name)


def _get_variable_kind(tensor_name: str) -> str:
    """Return the last part of a tensor name in the file, such as "kernel", "bias" or "gamma"."""
    return tensor_name.removesuffix(":0").rpartition("/")[2]


def _make_torch_shape(tensor_name: str, shape: Shape) -> Shape:
    if _get_variable_kind(tensor_name) == "kernel":
        return shape[::-1]
    if _get_variable_kind(tensor_name) == "bias" and len(shape) == 2 and shape[0] == 1:  # GPT-2's `Conv1D`
        return shape[1:]
    return shape


def _check_origin(path: Path, tensor_names: Sequence[str], is_shard: bool) -> None:
    """Check that the tensors belong to a single transformers model.

    Raises:
        PresetError: If they do not; the message says what the file holds instead.
    """
    unexpected_name = next((name for name in tensor_names if not name.endswith(":0")), None)
    if not tensor_names or unexpected_name:
        reason = (
            f"holds {unexpected_name!r}, which has no name of a variable of Keras 2"
            if tensor_names
            else "holds no tensors"
        )
        raise PresetError(f"{path} {reason}, so it is not a file of transformers' TensorFlow classes.")
    if is_shard:
        return
    scopes = {parts[1] for name in tensor_names if len(parts := name.split("/")) > 2 and "model." not in name}
    problem = ""
    if any(name.startswith("model_weights/") for name in tensor_names):
        problem = "is a whole model of Keras"
    elif len(scopes) > 1:
        problem = f"holds tensors of {', '.join(sorted(scopes)[:3])}, expected those of one model"
    if problem:
        raise PresetError(
            f"{path} {problem}: `save` or `save_weights` of a Keras model that contains one of transformers wrote it. "
            "Where transformers 4 and tf-keras are installed, build that Keras model, load this file into it, and call "
            "`save_pretrained(folder)` on the model of transformers alone. lmzoo reads that folder."
        )


def refuse_tensorflow_names(file: TensorFile) -> None:
    """Check that a safetensors or pickled file was not written by a TensorFlow class.

    Raises:
        PresetError: If a tensor has the name of a TensorFlow variable; the message says how to convert the file.
    """
    if any(name.endswith(":0") for name in file.names()):
        raise PresetError(
            f"{file.path} holds safetensors of a TensorFlow class of transformers, expected those of a PyTorch class. "
            f"To get a {TENSORFLOW_FILES[0]}, {_SAVE}"
        )


def advise_on_weights(directory: Path) -> str:
    """Return advice on TensorFlow weights or adapters that lmzoo cannot read, or "" if the directory has neither."""
    names = sorted(path.name for path in directory.iterdir())
    if "adapter_config.json" in names:
        return (
            "adapter_config.json is of an adapter of PEFT, which holds only changes to another model. Where PEFT is "
            "installed, merge both with `merge_and_unload()`, and call `save_pretrained(folder)` on the result. lmzoo "
            "reads that folder."
        )
    if (graph := next((name for name in names if name in ("saved_model.pb", "saved_model")), None)) is not None:
        return (
            f"{graph} is TensorFlow's SavedModel, a graph to run, from which no model can be loaded. If a model of "
            f"transformers wrote it, {_SAVE}"
        )
    if TENSORFLOW_FILES[0] in names:
        return f"{TENSORFLOW_FILES[0]} needs the {CONFIG_FILE} that transformers wrote next to it. Put it there."
    if (shard := next(filter(_SHARD.fullmatch, names), None)) is not None:
        return f"{shard} needs the index {TENSORFLOW_FILES[1]} and {CONFIG_FILE}. Put them next to it."
    if (index := next((name for name in names if name.endswith(".index")), None)) is not None:
        return (
            f"{index} is a TensorFlow checkpoint without a configuration such as bert_config.json. If `save_weights` "
            f"of a model of transformers wrote it, {_SAVE}"
        )
    weight_files = [name for name in names if name.endswith(".h5") and not name.endswith(".weights.h5")]
    if weight_files:
        return (
            f"If `save_weights` of a model of transformers wrote {weight_files[0]}, rename it to "
            f"{TENSORFLOW_FILES[0]}, and put the model's {CONFIG_FILE} next to it."
        )
    return ""
