"""Views of stored tensors with joined attention heads, or with stacked layers as separate tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator

import numpy as np

from lmzoo.checkpoints.formats.tensor_file import Arrays, Place, PlacedTensors, TensorFile
from lmzoo.errors import PresetError

# Function from a tensor name to the axis that counts attention heads, or to None. The next axis is the size of a head.
HeadsAxis = Callable[[str], int | None]


def join_heads(file: TensorFile, num_heads: int, axis_of: HeadsAxis) -> TensorFile:
    """Return the tensors of a file with the two axes of attention heads, number and size, merged into one.

    Args:
        file: Tensors with separate axes.
        num_heads: Number of attention heads.
        axis_of: Function from a tensor name to the axis of the attention heads, or to None if there is no such axis.

    Raises:
        PresetError: If a tensor has the wrong number of heads; the message names the tensor and its file.
    """
    places = {}
    for name in file.names():
        shape = file.shape(name)
        axis = axis_of(name)
        if axis is not None:
            if len(shape) < axis + 2 or shape[axis] != num_heads:
                raise PresetError(
                    f"{file.file_of(name)}: {name!r} has shape {shape}, expected {num_heads} heads on axis {axis}."
                )
            shape = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
        places[name] = Place(file, name, shape, operator.methodcaller("reshape", shape))
    return PlacedTensors(file.path, places)


def split_heads(tensors: Arrays, num_heads: int, axis_of: HeadsAxis) -> Iterator[tuple[str, np.ndarray]]:
    """Split the axis of attention heads into two axes, number and size: the inverse of `join_heads`.

    Args:
        tensors: Pairs of a name and an array.
        num_heads: Number of attention heads.
        axis_of: Function from a tensor name to the axis of the attention heads, or to None if there is no such axis.

    Yields:
        The name and the array of each tensor.
    """
    for name, array in tensors:
        if (axis := axis_of(name)) is not None:
            array = array.reshape(*array.shape[:axis], num_heads, -1, *array.shape[axis + 1 :])
        yield name, array


def unstack(file: TensorFile, stacked: Collection[str]) -> TensorFile:
    """Return the tensors of a file with stacked tensors split by layer: layer 3 of `name` becomes `name/3`.

    Args:
        file: Tensors of the file.
        stacked: Names of the stacked tensors, in which the first axis is the layer.

    Raises:
        PresetError: If a stacked tensor has no axes; the message names it.
    """
    places = {name: Place(file, name) for name in file.names() if name not in stacked}
    for name in sorted(set(stacked) & set(file.names())):
        if not file.shape(name):
            raise PresetError(f"{file.file_of(name)}: {name!r} has no axes, expected one of layers.")
        num_layers, *shape = file.shape(name)
        for layer in range(num_layers):
            places[f"{name}/{layer}"] = Place(file, name, tuple(shape), operator.itemgetter(layer))
    return PlacedTensors(file.path, places)


def stack(tensors: Arrays, stacked: Collection[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Stack the tensors of separate layers on a new first axis: the inverse of `unstack`.

    Args:
        tensors: Pairs of a name and an array. The layers of a stacked tensor, `name/0`, `name/1` and so on, come in
            order.
        stacked: Names of the stacked tensors.

    Yields:
        The name and the array of each tensor.
    """
    layers_by_name: dict[str, list[np.ndarray]] = {}
    for name, array in tensors:
        stacked_name, _, _ = name.rpartition("/")
        if stacked_name in stacked:
            layers_by_name.setdefault(stacked_name, []).append(array)
        else:
            yield name, array
    for name, layers in layers_by_name.items():
        yield name, np.stack(layers)
