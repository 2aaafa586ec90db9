"""Tensors that hold the weights of all layers, one after another on their first axis, as one tensor for each layer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from lmzoo.checkpoints.formats.tensor_file import RenamedTensors, TensorFile
from lmzoo.errors import PresetError


class UnstackedTensors(RenamedTensors):
    """The tensors of another file, where `name/3` is layer 3 of a tensor `name` that holds several.

    Args:
        file: the file.
        stacked: names of the tensors that hold several.

    Raises:
        PresetError: naming a tensor without axes.
    """

    def __init__(self, file: TensorFile, stacked: Collection[str]) -> None:
        super().__init__(file.path, {name: (file, name) for name in file.names() if name not in stacked})
        self._layers: dict[str, int] = {}
        for name in sorted(set(stacked) & set(file.names())):
            if not file.shape(name):
                raise PresetError(f"{file.file_of(name)}: {name!r} has no axes, expected one of layers.")
            self._layers |= {f"{name}/{layer}": layer for layer in range(file.shape(name)[0])}
        self._places = {**self._places, **{name: (file, name.rpartition("/")[0]) for name in self._layers}}

    def shape(self, name: str) -> tuple[int, ...]:
        return super().shape(name)[1:] if name in self._layers else super().shape(name)

    def read(self, name: str) -> np.ndarray:
        array = super().read(name)
        return array[self._layers[name]] if name in self._layers else array


def stack(tensors: Iterable[tuple[str, np.ndarray]], stacked: Collection[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Put layers of the `stacked` tensors together, which come in order: the inverse of `UnstackedTensors`."""
    layers: dict[str, list[np.ndarray]] = {}
    for name, array in tensors:
        whole, _, _ = name.rpartition("/")
        if whole in stacked:
            layers.setdefault(whole, []).append(array)
        else:
            yield name, array
    for name, arrays in layers.items():
        yield name, np.stack(arrays)
