"""Base class of models that write `.keras` files atomically."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lmzoo.files.atomic import atomic_file, check_path
from lmzoo.parallel.processes import without_distribution
from lmzoo.parallel.several_devices import SeveralDevicesModel


class AtomicSavingModel(SeveralDevicesModel):
    """Model that leaves an existing `.keras` file unchanged if saving fails."""

    def save(self, filepath: str | Path, overwrite: bool = True, **kwargs: Any) -> None:
        """Write a `.keras` file; see `keras.Model.save`.

        If writing fails, for example on a full disk, an existing file is left unchanged. If several processes train the
        model, call this in only one of them.

        Raises:
            ValueError: If `filepath` does not end in `.keras`.
            FileExistsError: If the file exists and `overwrite` is False.
        """
        check_path(filepath)
        if Path(filepath).suffix != ".keras":
            raise ValueError(f"Models are saved as `.keras` files, got {os.fspath(filepath)!r}.")
        if Path(filepath).expanduser().exists() and not overwrite:
            raise FileExistsError(f"{os.fspath(filepath)} exists; pass `overwrite=True` to replace it.")
        # Keras creates a second optimizer for comparison, which would otherwise wait for all processes.
        with atomic_file(filepath) as temporary_file, without_distribution():
            super().save(temporary_file, **kwargs)
