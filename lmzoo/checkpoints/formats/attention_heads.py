"""Attention weights of files in which the heads are a separate axis; here heads and their columns are one axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from lmzoo.checkpoints.formats.tensor_file import RenamedTensors, TensorFile
from lmzoo.errors import PresetError

# From a tensor's name to the axis of its heads, which is followed by that of their columns; None if it has no heads.
HeadsAxis = Callable[[str], int | None]


class JoinedHeads(RenamedTensors):
    """The tensors of another file, their names kept, with heads and their columns as one axis: that of `axis_of`.

    Raises:
        PresetError: naming the file and the tensor with another number of heads.
    """

    def __init__(self, file: TensorFile, num_heads: int, axis_of: HeadsAxis) -> None:
        super().__init__(file.path, {name: (file, name) for name in file.names()})
        self._shapes: dict[str, tuple[int, ...]] = {}
        for name in file.names():
            shape, axis = file.shape(name), axis_of(name)
            if axis is not None:
                if len(shape) < axis + 2 or shape[axis] != num_heads:
                    raise PresetError(
                        f"{file.file_of(name)}: {name!r} has shape {shape}, expected {num_heads} heads on axis {axis}."
                    )
                shape = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
            self._shapes[name] = shape

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def read(self, name: str) -> np.ndarray:
        return super().read(name).reshape(self._shapes[name])


def split_heads(
    tensors: Iterable[tuple[str, np.ndarray]], num_heads: int, axis_of: HeadsAxis
) -> Iterator[tuple[str, np.ndarray]]:
    """Split heads and their columns into two axes: the inverse of `JoinedHeads`, for writing."""
    for name, array in tensors:
        if (axis := axis_of(name)) is not None:
            array = array.reshape(*array.shape[:axis], num_heads, -1, *array.shape[axis + 1 :])
        yield name, array
