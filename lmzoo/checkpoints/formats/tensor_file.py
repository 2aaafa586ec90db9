"""Readers of weight files, one tensor at a time by name: the base class, and views that rename or reshape tensors."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from lmzoo.errors import PresetError

Shape: TypeAlias = tuple[int, ...]
Arrays: TypeAlias = Iterable[tuple[str, np.ndarray]]  # pairs of a name and an array

_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")


class Tensor(NamedTuple):
    """The shape, dtype and file of a stored tensor.

    Attributes:
        shape: Shape of the tensor.
        dtype: Numpy name of the dtype, such as "float32".
        file: Path of the file that holds the tensor, for messages.
    """

    shape: Shape
    dtype: str
    file: Path


class TensorFile(ABC):
    """The tensors of a weight file, or of several shards.

    The constructor of a subclass reads names, shapes and dtypes, and checks that the file is large enough to hold the
    values.

    Args:
        path: Path of the file, or of the directory with the shards.
        tensors: Shapes, dtypes and files of the tensors, by name.
        prefix: Prefix of every name in the file, which `names` omits.
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
        """Return the numpy name of a tensor's dtype, such as "float32"."""
        return self._tensor(name).dtype

    def file_of(self, name: str) -> Path:
        """Return the path of the file that holds a tensor, for messages."""
        return self._tensor(name).file

    @abstractmethod
    def read(self, name: str) -> np.ndarray:
        """Return the values of a tensor."""

    def close(self) -> None:  # noqa: B027 - a reader that keeps no file open has nothing to do
        """Close the files; no tensor can be read afterwards."""

    def _tensor(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise PresetError(f"{self.path} lists no tensor {name!r}.")
        return self._tensors[name]


class LazyTensors:
    """A `TensorFile` that is opened on first use.

    Args:
        open_files: Function that opens the files.
    """

    def __init__(self, open_files: Callable[[], TensorFile]) -> None:
        self._open_files = open_files
        self._tensors: TensorFile | None = None

    def open(self) -> TensorFile:
        """Return the tensors; the first call opens their files."""
        if self._tensors is None:
            self._tensors = self._open_files()
        return self._tensors

    def close(self) -> None:
        """Close the files if they are open."""
        if self._tensors is not None:
            self._tensors.close()


class Place(NamedTuple):
    """The source of a tensor that is renamed or reshaped.

    Attributes:
        file: File that holds the values.
        name: Name of the stored tensor.
        shape: Shape of the new tensor, or None for the stored shape.
        load: Function from the stored values to the new tensor.
    """

    file: TensorFile
    name: str
    shape: Shape | None = None
    load: Callable[[np.ndarray], np.ndarray] = lambda array: array


class PlacedTensors(TensorFile):
    """Renamed or reshaped tensors of one or several files.

    Args:
        path: Path of the file, or of the directory with the files.
        places: Dict from the new name of a tensor to its source.
        prefix: Prefix of every name in the file, which the new names omit.
    """

    def __init__(self, path: Path, places: Mapping[str, Place], prefix: str = "") -> None:
        tensors = {
            name: Tensor(
                file.shape(stored_name) if shape is None else shape, file.dtype(stored_name), file.file_of(stored_name)
            )
            for name, (file, stored_name, shape, _) in places.items()
        }
        super().__init__(path, tensors, prefix)
        self._places = places

    def read(self, name: str) -> np.ndarray:
        place = self._places[name]
        return place.load(place.file.read(place.name))

    def close(self) -> None:
        for file in {place.file for place in self._places.values()}:
            file.close()


def strip_wrappers(file: TensorFile) -> TensorFile:
    """Return the tensors of a file without the prefixes that wrappers of PyTorch models add to every name.

    The prefixes are `module.` from `DistributedDataParallel`, `_orig_mod.` from `torch.compile` and
    `_fsdp_wrapped_module.` from `FullyShardedDataParallel`, in any order.
    """
    names = list(file.names())
    prefix = ""
    while names and (wrapper := next((w for w in _WRAPPERS if all(n.startswith(prefix + w) for n in names)), None)):
        prefix += wrapper
    if not prefix:
        return file
    return PlacedTensors(file.path, {name.removeprefix(prefix): Place(file, name) for name in names}, prefix)


@contextlib.contextmanager
def convert_damage_errors(what: str) -> Iterator[None]:
    """Convert any exception in the block, except a `PresetError`, into a `PresetError` about a damaged file.

    Args:
        what: Beginning of the message, such as "model.bin cannot be read".

    Raises:
        PresetError: If the block raises any exception; the message includes the first line of the original message,
            except for PyTorch's advice to load the file without protection.
    """
    try:
        yield
    except PresetError:
        raise
    except Exception as error:  # the type depends on the position of the damage
        reason = str(error).strip().partition("\n")[0]
        # PyTorch's message advises loading the file without protection, so it is not shown.
        reason = type(error).__name__ if "weights_only" in reason or not reason else f"{reason:.300}"
        raise PresetError(
            f"{what}: {reason}. The file is truncated, altered or in another format; fetch it again."
        ) from error
