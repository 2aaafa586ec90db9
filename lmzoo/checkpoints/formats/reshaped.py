"""Tensors that files hold in other shapes: heads as a separate axis, or the weights of all layers as one tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator

import numpy as np

from lmzoo.checkpoints.formats.tensor_file import Arrays, Place, PlacedTensors, TensorFile
from lmzoo.errors import PresetError

# From a tensor's name to the axis of its heads, which is followed by that of their columns; None if it has no heads.
HeadsAxis = Callable[[str], int | None]


def join_heads(file: TensorFile, num_heads: int, axis_of: HeadsAxis) -> TensorFile:
    """Return the tensors of a file, their names kept, with heads and their columns as one axis: that of `axis_of`.

    Raises:
        PresetError: naming the file and the tensor with another number of heads.
    """
    places = {}
    for name in file.names():
        shape, axis = file.shape(name), axis_of(name)
        if axis is not None:
            if len(shape) < axis + 2 or shape[axis] != num_heads:
                raise PresetError(
                    f"{file.file_of(name)}: {name!r} has shape {shape}, expected {num_heads} heads on axis {axis}."
                )
            shape = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
        places[name] = Place(file, name, shape, operator.methodcaller("reshape", shape))
    return PlacedTensors(file.path, places)


def split_heads(tensors: Arrays, num_heads: int, axis_of: HeadsAxis) -> Iterator[tuple[str, np.ndarray]]:
    """Split heads and their columns into two axes: the inverse of `join_heads`, for writing."""
    for name, array in tensors:
        if (axis := axis_of(name)) is not None:
            array = array.reshape(*array.shape[:axis], num_heads, -1, *array.shape[axis + 1 :])
        yield name, array


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
