"""The interface of readers of file formats: tensors by name, read one at a time, and one error for damaged files."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from lmzoo.errors import PresetError

Shape: TypeAlias = tuple[int, ...]
Arrays: TypeAlias = Iterable[tuple[str, np.ndarray]]  # with their names

_WRAPPERS = ("module.", "_orig_mod.")


class Tensor(NamedTuple):
    """What is known about a tensor before it is read.

    Attributes:
        shape: Its shape.
        dtype: Its dtype by its numpy name, such as "float32".
        file: The file that holds it, for messages.
    """

    shape: Shape
    dtype: str
    file: Path


class TensorFile(ABC):
    """The tensors of a checkpoint.

    Opening one reads names, shapes and dtypes, and checks that the file can hold what it declares.

    Args:
        path: The file, or the directory of a checkpoint in several.
        tensors: What is known about the tensors, by name.
        prefix: What stands before every name in the file, and is left out by `names`.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        self.path = path
        self.prefix = prefix
        self._tensors = tensors

    def names(self) -> Iterable[str]:
        """Return the names of the tensors."""
        return self._tensors.keys()

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor."""
        return self._tensor(name).shape

    def dtype(self, name: str) -> str:
        """Return the dtype of a tensor by its numpy name, such as "float32"."""
        return self._tensor(name).dtype

    def file_of(self, name: str) -> Path:
        """Return the file that holds a tensor, for messages."""
        return self._tensor(name).file

    @abstractmethod
    def read(self, name: str) -> np.ndarray:
        """Return the values of a tensor."""

    def close(self) -> None:  # noqa: B027 - a reader that keeps no file open has nothing to do
        """Close the files, after which no tensor can be read."""

    def _tensor(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise PresetError(f"{self.path} lists no tensor {name!r}.")
        return self._tensors[name]


class LazyTensors:
    """The tensors of a checkpoint, whose files are opened when they are first needed, and once.

    Args:
        open_files: Opens the files.
    """

    def __init__(self, open_files: Callable[[], TensorFile]) -> None:
        self._open_files = open_files
        self._tensors: TensorFile | None = None

    def open(self) -> TensorFile:
        """Return the tensors, whose files stay open."""
        if self._tensors is None:
            self._tensors = self._open_files()
        return self._tensors

    def close(self) -> None:
        """Close the files that were opened."""
        if self._tensors is not None:
            self._tensors.close()


class Place(NamedTuple):
    """Where the values of a tensor are.

    Attributes:
        file: The file that holds them.
        name: The name there.
        shape: The tensor's shape, or None for the shape there.
        load: Turns the values there into the tensor.
    """

    file: TensorFile
    name: str
    shape: Shape | None = None
    load: Callable[[np.ndarray], np.ndarray] = lambda array: array


class PlacedTensors(TensorFile):
    """Tensors of one file or of several, under other names or in other shapes.

    Args:
        path: The file, or the directory of several.
        places: Name of a tensor -> where its values are.
        prefix: What stands before every name in the file, and is left out here.
    """

    def __init__(self, path: Path, places: Mapping[str, Place], prefix: str = "") -> None:
        tensors = {
            name: Tensor(file.shape(stored) if shape is None else shape, file.dtype(stored), file.file_of(stored))
            for name, (file, stored, shape, _) in places.items()
        }
        super().__init__(path, tensors, prefix)
        self._places = places

    def read(self, name: str) -> np.ndarray:
        place = self._places[name]
        return place.load(place.file.read(place.name))

    def close(self) -> None:
        for file in {place.file for place in self._places.values()}:
            file.close()


def without_wrappers(file: TensorFile) -> TensorFile:
    """Return tensors without the prefixes that wrappers of PyTorch's models put before every name.

    They are `module.` of `DistributedDataParallel` and `_orig_mod.` of `torch.compile`, in any order.
    """
    names = list(file.names())
    prefix = ""
    while names and (wrapper := next((w for w in _WRAPPERS if all(n.startswith(prefix + w) for n in names)), None)):
        prefix += wrapper
    if not prefix:
        return file
    return PlacedTensors(file.path, {name.removeprefix(prefix): Place(file, name) for name in names}, prefix)


@contextlib.contextmanager
def damage_named(what: str) -> Iterator[None]:
    """Turn whatever error a library raises for a damaged file into a `PresetError`.

    `what` cannot be read then, such as "model.bin is not a whole file of PyTorch's".

    Raises:
        PresetError: For any exception, with the first line of its reason.
    """
    try:
        yield
    except PresetError:
        raise
    except Exception as error:  # its type depends on where the file is damaged
        reason = str(error).strip().partition("\n")[0]
        # PyTorch's own message on unpickling advises to try again without protection.
        reason = type(error).__name__ if "weights_only" in reason or not reason else f"{reason:.300}"
        raise PresetError(
            f"{what}: {reason}. The file is truncated, altered or in another format; fetch it again."
        ) from error
