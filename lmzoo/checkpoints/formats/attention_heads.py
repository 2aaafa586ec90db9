"""Attention weights of files in which the heads are a separate axis; here heads and their columns are one axis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

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
        places[name] = Place(file, name, shape, functools.partial(np.reshape, shape=shape))
    return PlacedTensors(file.path, places)


def split_heads(tensors: Arrays, num_heads: int, axis_of: HeadsAxis) -> Iterator[tuple[str, np.ndarray]]:
    """Split heads and their columns into two axes: the inverse of `join_heads`, for writing."""
    for name, array in tensors:
        if (axis := axis_of(name)) is not None:
            array = array.reshape(*array.shape[:axis], num_heads, -1, *array.shape[axis + 1 :])
        yield name, array
