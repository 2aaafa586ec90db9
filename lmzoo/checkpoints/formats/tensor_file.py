"""The interface of readers of file formats: tensors by name, read one at a time, and one error for damaged files."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from lmzoo.errors import PresetError

_WRAPPERS = ("module.", "_orig_mod.")


class TensorFile(ABC):
    """The tensors of a checkpoint.

    Opening one reads names, shapes and dtypes, and checks that the file can hold what it declares.

    Attributes:
        path: The file, or the directory of a checkpoint in several.
        prefix: What stands before every name in the file, and is left out by `names`.
    """

    path: Path
    prefix: str = ""

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Return the names of the tensors."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""

    @abstractmethod
    def dtype(self, name: str) -> str:
        """Return the dtype of a tensor by its numpy name, such as "float32"."""

    @abstractmethod
    def read(self, name: str) -> np.ndarray:
        """Return the values of a tensor."""

    def file_of(self, name: str) -> Path:
        """Return the file that holds a tensor, for messages."""
        return self.path

    def close(self) -> None:  # noqa: B027 - a reader that keeps no file open has nothing to do
        """Close the files, after which no tensor can be read."""


class TensorsInFiles(TensorFile):
    """The tensors of a checkpoint in one file or several, each tensor in one of them."""

    _files: dict[str, Path]  # of the tensors, by their names

    def names(self) -> Iterable[str]:
        return self._files.keys()

    def file_of(self, name: str) -> Path:
        return self._files[name]


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


class RenamedTensors(TensorFile):
    """Tensors of one file or of several, under other names.

    Args:
        path: The file, or the directory of several.
        places: Name of a tensor -> the file that holds it, and its name there.
        prefix: What stands before every name in the file, and is left out here.
    """

    def __init__(self, path: Path, places: Mapping[str, tuple[TensorFile, str]], prefix: str = "") -> None:
        self.path = path
        self.prefix = prefix
        self._places = places

    def names(self) -> Iterable[str]:
        return self._places.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        file, stored = self._places[name]
        return file.shape(stored)

    def dtype(self, name: str) -> str:
        file, stored = self._places[name]
        return file.dtype(stored)

    def read(self, name: str) -> np.ndarray:
        file, stored = self._places[name]
        return file.read(stored)

    def file_of(self, name: str) -> Path:
        file, stored = self._places[name]
        return file.file_of(stored)

    def close(self) -> None:
        for file in {file for file, _ in self._places.values()}:
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
    return RenamedTensors(file.path, {name.removeprefix(prefix): (file, name) for name in names}, prefix)


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
