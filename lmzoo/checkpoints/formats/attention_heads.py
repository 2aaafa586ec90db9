"""Attention's weights in files that keep the heads as an axis of their own; here heads and columns are one axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from lmzoo.checkpoints.formats.tensor_file import TensorFile
from lmzoo.errors import PresetError

# From a tensor's name to the axis of its heads, which that of their columns follows; None if it has none.
HeadsAxis = Callable[[str], int | None]


class JoinedHeads(TensorFile):
    """The tensors of another file, heads and their columns as one axis.

    Args:
        file: the other file.
        num_heads: how many heads the configuration says there are.
        axis_of: which tensors have heads, and where.

    Raises:
        PresetError: naming the file and the tensor with another number of heads.
    """

    def __init__(self, file: TensorFile, num_heads: int, axis_of: HeadsAxis) -> None:
        self.path = file.path
        self._file = file
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

    def names(self) -> Iterable[str]:
        return self._shapes.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> str:
        return self._file.dtype(name)

    def read(self, name: str) -> np.ndarray:
        return self._file.read(name).reshape(self._shapes[name])

    def file_of(self, name: str) -> Path:
        return self._file.file_of(name)


def split_heads(
    tensors: Iterable[tuple[str, np.ndarray]], num_heads: int, axis_of: HeadsAxis
) -> Iterator[tuple[str, np.ndarray]]:
    """Tensors to write, heads and their columns as two axes: the inverse of `JoinedHeads`."""
    for name, array in tensors:
        if (axis := axis_of(name)) is not None:
            array = array.reshape(*array.shape[:axis], num_heads, -1, *array.shape[axis + 1 :])
        yield name, array
