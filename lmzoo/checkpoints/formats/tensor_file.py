"""What every reader of a file format offers: tensors by name, read one at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

import numpy as np


class TensorFile(ABC):
    """The tensors of a checkpoint.

    Opening one reads names, shapes and dtypes, and checks that the file can hold what it declares.

    Attributes:
        path: the file, or the directory of a checkpoint in several.
    """

    path: Path

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Names of the tensors."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""

    @abstractmethod
    def dtype(self, name: str) -> str:
        """Dtype of a tensor by its numpy name, such as "float32"."""

    @abstractmethod
    def read(self, name: str) -> np.ndarray:
        """The values of a tensor."""

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor, for messages."""
        return self.path
