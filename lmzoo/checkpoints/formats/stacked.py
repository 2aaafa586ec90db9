"""Tensors that hold the weights of all layers, one after another on their first axis, as one tensor for each layer."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator

import numpy as np

from lmzoo.checkpoints.formats.tensor_file import Arrays, Place, PlacedTensors, TensorFile
from lmzoo.errors import PresetError


def unstack(file: TensorFile, stacked: Collection[str]) -> TensorFile:
    """Return the tensors of a file, where `name/3` is layer 3 of a tensor `name` that holds several.

    Args:
        file: the file.
        stacked: names of the tensors that hold several.

    Raises:
        PresetError: naming a tensor without axes.
    """
    places = {name: Place(file, name) for name in file.names() if name not in stacked}
    for name in sorted(set(stacked) & set(file.names())):
        if not file.shape(name):
            raise PresetError(f"{file.file_of(name)}: {name!r} has no axes, expected one of layers.")
        layers, *shape = file.shape(name)
        for layer in range(layers):
            places[f"{name}/{layer}"] = Place(file, name, tuple(shape), operator.itemgetter(layer))
    return PlacedTensors(file.path, places)


def stack(tensors: Arrays, stacked: Collection[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Put layers of the `stacked` tensors together, which come in order: the inverse of `unstack`."""
    layers: dict[str, list[np.ndarray]] = {}
    for name, array in tensors:
        whole, _, _ = name.rpartition("/")
        if whole in stacked:
            layers.setdefault(whole, []).append(array)
        else:
            yield name, array
    for name, arrays in layers.items():
        yield name, np.stack(arrays)
