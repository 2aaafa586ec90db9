"""Base class of models whose `.keras` files are written as a whole or not at all."""

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
            ValueError: If the path does not end in `.keras`.
            FileExistsError: If the file exists and may not be replaced.
        """
        check_path(filepath)
        if Path(filepath).suffix != ".keras":
            raise ValueError(f"Models are saved as `.keras` files, got {os.fspath(filepath)!r}.")
        if Path(filepath).expanduser().exists() and not overwrite:
            raise FileExistsError(f"{os.fspath(filepath)} exists; pass `overwrite=True` to replace it.")
        # Keras creates a second optimizer for comparison, which would otherwise wait for all processes.
        with atomic_file(filepath) as temporary, without_distribution():
            super().save(temporary, **kwargs)
