"""ELMo's files: options as JSON, weights as HDF5, as bilm-tf writes and AllenNLP reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.models.family import families


def load_bilm(options_file: str | Path, weight_file: str | Path, dtype: Any = None, **overrides: Any) -> Any:
    """An ELMo from the files of bilm-tf or AllenNLP.

    Args:
        options_file: path of `*options.json`.
        weight_file: path of `*weights.hdf5`.
        dtype: dtype policy.
        **overrides: fields of `ElmoConfig` to set instead.

    Returns:
        The `ElmoBackbone`, its mix untrained.

    Raises:
        ValueError: naming what is missing in a file, left over, or of another shape.
    """
    import h5py

    family = families()["elmo"]
    config_of, datasets = family.checkpoints["bilm"]

    options = json.loads(Path(options_file).read_text("utf-8"))
    with h5py.File(weight_file, "r") as file:
        stored: dict[str, Any] = {}
        file.visititems(lambda name, item: stored.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        if "embedding" in stored and "char_cnn" not in options:
            overrides.setdefault("vocabulary_size", stored["embedding"].shape[0] + 1)  # and a row for no token
        config = config_of(options, **overrides)
        backbone = family.backbone(**vars(config), dtype=dtype)
        names = dict(datasets(config))
        if names_differ := set(names.values()) ^ set(stored):
            raise ValueError(f"{weight_file}: {sorted(names_differ)[0]} is missing, or is not part of the model.")
        weights = {weight.path.removeprefix("bilm/"): weight for weight in backbone.bilm.weights}
        for path, name in names.items():
            source, weight = stored[name], weights.pop(path)
            table, convolution = name in ("embedding", "char_embed"), "W_cnn" in name
            shape = tuple(weight.shape)
            shape = (shape[0] - 1, *shape[1:]) if table else (1, *shape) if convolution else shape
            if source.shape != shape or source.external or source.is_virtual:
                raise ValueError(f"{weight_file}: {name} must be stored there with shape {shape}, got {source.shape}.")
            array = np.asarray(source, "float32")
            weight.assign(np.pad(array, [[1, 0], [0, 0]]) if table else array[0] if convolution else array)
        if left := [path for path, weight in weights.items() if "seed_generator" not in path]:
            raise ValueError(f"{weight_file} holds nothing for {left[0]}.")
    return backbone
