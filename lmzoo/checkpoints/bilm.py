"""ELMo's files: options as JSON, weights as HDF5, as bilm-tf writes and AllenNLP reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from lmzoo.checkpoints.checkpoint import Checkpoint, find_family, read_arguments
from lmzoo.checkpoints.formats.hdf5 import Hdf5File
from lmzoo.checkpoints.formats.sharded import check_inside
from lmzoo.errors import PresetError
from lmzoo.files.preset_files import read_json
from lmzoo.registry.family import Family


def open_bilm(options_file: Path, weight_file: Path) -> Checkpoint:
    """The checkpoint of an ELMo.

    Raises:
        PresetError: if an option is missing, or a file is damaged.
    """
    options = dict(_flat(read_json(options_file.parent, options_file.name)))
    format, sizes = "bilm" if any(key.startswith("char_cnn.") for key in options) else "bilm_tokens", {}
    if format == "bilm_tokens":
        weights = Hdf5File(weight_file)
        if "embedding" not in weights.names():
            raise PresetError(f"{weight_file} lacks 'embedding', and {options_file} describes no `char_cnn`.")
        sizes["vocabulary_size"] = weights.shape("embedding")[0] + 1  # one more row, for padding

    def read(family: Family) -> Checkpoint:
        arguments = read_arguments(family, format, options, options_file, ignore_unknown=True, **sizes)
        return Checkpoint(
            options_file.parent,
            format,
            family,
            arguments,
            lambda: Hdf5File(weight_file),
            config_file=options_file,
            unknown_keys=family.checkpoints[format].config.unknown(options),
        )

    return find_family(format, read)


def load_bilm(options_file: str | Path, weight_file: str | Path, dtype: Any = None, **overrides: Any) -> keras.Model:
    """Loads an ELMo, its mix untrained, from the files of bilm-tf or AllenNLP.

    `overrides` are fields of `ElmoConfig` to set instead.

    Raises:
        ValueError: naming what a file lacks, what is left over, or what has another shape.

    Example:

    ```python
    import lmzoo
    from lmzoo.checkpoints.bilm import load_bilm

    backbone = lmzoo.models.ElmoBackbone(lstm_dim=12, projection_dim=6, filters=((1, 5), (2, 8)))
    lmzoo.save_checkpoint(backbone, "elmo", to="bilm")
    load_bilm("elmo/options.json", "elmo/weights.hdf5").projection_dim  # 6
    ```
    """
    checkpoint = open_bilm(Path(options_file), Path(weight_file))
    backbone = checkpoint.build({**overrides, "dtype": dtype})
    checkpoint.load(backbone)
    return backbone


def find_bilm(directory: Path) -> Checkpoint | None:
    """The checkpoint in a directory with one `*options.json` and one `*weights.hdf5`; None if these are missing.

    Raises:
        PresetError: if there are several, or one is a link out of the directory.
    """
    options, weights = sorted(directory.glob("*options.json")), sorted(directory.glob("*weights.hdf5"))
    if not options or not weights:
        return None
    if len(options) > 1 or len(weights) > 1:
        raise PresetError(f"{directory} must hold one *options.json and one *weights.hdf5; found several.")
    check_inside(directory, options[0])
    check_inside(directory, weights[0])
    return open_bilm(options[0], weights[0])


def _flat(options: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """Flattens nested options: their keys become "lstm.dim" and the like."""
    for key, value in options.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value
