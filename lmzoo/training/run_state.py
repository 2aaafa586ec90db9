"""Saved states of a training run: written whole or not at all, the last few kept, damaged ones skipped."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmzoo.checkpoints.formats.safetensors import SafetensorsFiles, write_safetensors
from lmzoo.errors import PresetError
from lmzoo.files.atomic import atomic_directory
from lmzoo.files.manifest import verify_manifest, write_manifest
from lmzoo.files.preset_files import MANIFEST_FILE, read_json, write_json

_POSITION_FILE = "position.json"
_STATE_FILE = "state.safetensors"
_FILES = {_POSITION_FILE, _STATE_FILE, MANIFEST_FILE}


@dataclass(frozen=True)
class RunState:
    """A saved state that is complete.

    Attributes:
        path: its directory.
        position: where the run was, a JSON object.
        tensors: its arrays, which are read one at a time.
    """

    path: Path
    position: dict[str, Any]
    tensors: SafetensorsFiles


@dataclass(frozen=True)
class RunStates:
    """A folder of saved states, each a directory `step-<number>` with arrays, position and checksums.

    If a process is killed while it writes, the earlier states stay, and perhaps a hidden directory, which the next
    `write` removes. Only one process at a time may write.

    Attributes:
        folder: is created when the first state is written.
        keep: how many of the latest states are kept.
    """

    folder: Path
    keep: int = 2

    def paths(self) -> list[Path]:
        """The directories of all states, including damaged ones, in the order of their steps."""
        return sorted(path for path in self.folder.glob("step-*") if path.name[5:].isdigit())

    def write(self, step: int, arrays: Iterable[tuple[str, np.ndarray]], position: dict[str, Any]) -> None:
        """Writes the state after `step` steps; removes states that are too old, and those of later steps.

        Arrays are those of `write_safetensors`, and the position is a JSON object.

        Raises:
            OSError: if it cannot be written; the earlier states stay.
        """
        target = self.folder / f"step-{step:012d}"
        with atomic_directory(target, marker=MANIFEST_FILE, owns=_FILES) as temporary:
            write_safetensors(temporary / _STATE_FILE, arrays, metadata={})
            write_json(temporary, _POSITION_FILE, position)
            write_manifest(temporary)
        paths = self.paths()
        place = paths.index(target) + 1  # Later states are damaged, or the run was resumed before them.
        for path in [*paths[: max(0, place - self.keep)], *paths[place:]]:
            with contextlib.suppress(OSError):
                shutil.rmtree(path.rename(path.with_name(f".{path.name}.tmp")))
        for leftover in self.folder.glob(".step-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def newest(self) -> RunState | None:
        """The latest complete state, with a warning for each damaged one before it; None if there are no states.

        Raises:
            ValueError: if all states are damaged.
        """
        paths = self.paths()
        for path in reversed(paths):
            try:
                if not verify_manifest(path):
                    raise PresetError(f"{path} has no {MANIFEST_FILE}.")
                return RunState(path, read_json(path, _POSITION_FILE), SafetensorsFiles(path / _STATE_FILE))
            except (PresetError, OSError) as error:
                reason = str(error).partition(". ")[0]
                warnings.warn(f"A checkpoint is damaged, and the one before is used: {reason}", stacklevel=2)
        if paths:
            raise ValueError(f"All checkpoints in {self.folder} are damaged: remove them to start from scratch.")
        return None
