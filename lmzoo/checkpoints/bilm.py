"""ELMo checkpoints of bilm-tf and AllenNLP: options as JSON, weights as HDF5."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from lmzoo.checkpoints.checkpoint import Checkpoint, find_family, read_checkpoint
from lmzoo.checkpoints.config_table import Arguments
from lmzoo.checkpoints.formats.hdf5 import Hdf5File
from lmzoo.checkpoints.formats.tensor_file import LazyTensors
from lmzoo.errors import PresetError
from lmzoo.files.inside import check_inside
from lmzoo.files.preset_files import JsonFiles
from lmzoo.registry.family import Family


def open_bilm(options_file: Path, weight_file: Path) -> Checkpoint:
    """Open an ELMo checkpoint.

    Args:
        options_file: Path of the JSON file with the options.
        weight_file: Path of the HDF5 file with the weights.

    Raises:
        PresetError: If the options file is damaged, or an option is missing or not supported. For a model without
            `char_cnn`, also if the weight file is damaged or lacks the tensor `embedding`.
    """
    files = JsonFiles(options_file.parent)
    options = dict(_flatten(files.read(options_file.name)))
    format = "bilm" if any(key.startswith("char_cnn.") for key in options) else "bilm_tokens"
    weights = LazyTensors(functools.partial(Hdf5File, weight_file))
    extra_arguments: Arguments = {}
    if format == "bilm_tokens":
        tensors = weights.open()
        if "embedding" not in tensors.names():
            raise PresetError(f"{weight_file} lacks 'embedding', and {options_file} describes no `char_cnn`.")
        extra_arguments["vocabulary_size"] = tensors.shape("embedding")[0] + 1  # the file has no row for padding

    def read_as(family: Family) -> Checkpoint:
        return read_checkpoint(files, format, family, options, options_file, weights, **extra_arguments)

    return find_family(format, read_as)


def load_bilm(options_file: str | Path, weight_file: str | Path, dtype: Any = None, **overrides: Any) -> keras.Model:
    """Load an ELMo backbone from the files of bilm-tf or AllenNLP.

    The weights of the layer mix are not in the files and keep their initial values.

    Args:
        options_file: Path of the JSON file with the options.
        weight_file: Path of the HDF5 file with the weights.
        dtype: Dtype or dtype policy of the backbone, or None for the default.
        **overrides: Arguments of `ElmoConfig` that replace the stored values.

    Raises:
        ValueError: If a file is missing or damaged, an option is missing or not supported, or a tensor is missing,
            unexpected or of the wrong shape; the message names the file, the option or the tensor.

    Example:

    ```python
    import lmzoo
    from lmzoo.checkpoints.bilm import load_bilm

    backbone = lmzoo.models.ElmoBackbone(lstm_dim=12, projection_dim=6, filters=((1, 5), (2, 8)))
    lmzoo.save_checkpoint(backbone, "elmo", to="bilm")
    load_bilm("elmo/options.json", "elmo/weights.hdf5").projection_dim  # 6
    ```
    """
    with contextlib.closing(open_bilm(Path(options_file), Path(weight_file))) as checkpoint:
        backbone = checkpoint.build({**overrides, "dtype": dtype})
        checkpoint.load(backbone)
    return backbone


def find_bilm(files: JsonFiles) -> Checkpoint | None:
    """Open the checkpoint in a directory with `*options.json` and `*weights.hdf5`, or return None if a file is missing.

    Raises:
        PresetError: If several files match one of the patterns, a file is a link that leaves the directory, or the
            checkpoint is damaged or not supported.
    """
    directory = files.directory
    options_files = sorted(directory.glob("*options.json"))
    weight_files = sorted(directory.glob("*weights.hdf5"))
    if not options_files or not weight_files:
        return None
    if len(options_files) > 1 or len(weight_files) > 1:
        raise PresetError(f"{directory} must hold one *options.json and one *weights.hdf5; found several.")
    check_inside(directory, options_files[0])
    check_inside(directory, weight_files[0])
    return open_bilm(options_files[0], weight_files[0])


def _flatten(options: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key, such as "lstm.dim", and the value of each option in nested options."""
    for key, value in options.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
