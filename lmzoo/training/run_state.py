"""Saved states of a training run, written atomically and verified by checksums."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import warnings
import weakref
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
from lmzoo.files.urls import copy_folder, exists, find_files, is_url, join_path, list_relative_names, remove_folder

_POSITION_FILE = "position.json"
_STATE_FILE = "state.safetensors"
_FILES = {_POSITION_FILE, _STATE_FILE, MANIFEST_FILE}


@dataclass(frozen=True)
class RunState:
    """Complete saved state of a training run.

    Attributes:
        path: str, directory or URL of the state.
        name: str, last part of the path.
        position: JSON object, the position of the run in its data and schedule.
        tensors: the saved arrays, which are read one at a time.
    """

    path: str
    name: str
    position: dict[str, Any]
    tensors: SafetensorsFiles


@dataclass(frozen=True)
class RunStates:
    """Directory of saved states, each a subdirectory `step-<number>` with arrays, position and checksums.

    If a process is killed while it writes, the earlier states remain. The process may leave a hidden directory, which
    the next `write` removes. Only one process at a time may write.

    At an fsspec URL, such as s3:// or gs://, a state is uploaded file by file, with its manifest last. A state with
    an incomplete upload counts as damaged.

    Attributes:
        folder: path or URL of the directory, which is created when the first state is written.
        keep: int, number of the latest states to keep.
    """

    folder: str | Path
    keep: int = 2

    def names(self) -> list[str]:
        """Return the names of all states in the order of their steps, including damaged states."""
        if is_url(self.folder):
            files = find_files(self.folder, lambda name: True) if exists(self.folder) else []
            entry_names = {name.partition("/")[0] for name in list_relative_names(self.folder, files)}
        else:
            entry_names = {path.name for path in Path(self.folder).glob("step-*")}
        return sorted(name for name in entry_names if name.startswith("step-") and name[5:].isdigit())

    def write(self, step: int, arrays: Iterable[tuple[str, np.ndarray]], position: dict[str, Any]) -> None:
        """Write the state after `step` steps, and remove outdated states and states of later steps.

        Args:
            step: int, number of steps done.
            arrays: pairs of names and arrays, as for `write_safetensors`.
            position: JSON object, the position of the run.

        Raises:
            OSError: If the state cannot be written; the earlier states remain.
        """
        name = f"step-{step:012d}"
        if is_url(self.folder):
            with tempfile.TemporaryDirectory(prefix="lmzoo-") as temporary_directory:
                _write_files(Path(temporary_directory), arrays, position)
                copy_folder(temporary_directory, join_path(self.folder, name), last=MANIFEST_FILE)
        else:
            with atomic_directory(Path(self.folder, name), marker=MANIFEST_FILE, owns=_FILES) as directory:
                _write_files(directory, arrays, position)
        names = self.names()
        num_current = names.index(name) + 1  # later states are damaged, or from before the run was resumed
        for outdated_name in [*names[: max(0, num_current - self.keep)], *names[num_current:]]:
            self._remove(outdated_name)
        if not is_url(self.folder):
            for leftover in Path(self.folder).glob(".step-*"):
                shutil.rmtree(leftover, ignore_errors=True)

    def _remove(self, name: str) -> None:
        if is_url(self.folder):
            remove_folder(join_path(self.folder, name))
            return
        path = Path(self.folder, name)
        with contextlib.suppress(OSError):
            shutil.rmtree(path.rename(path.with_name(f".{name}.tmp")))  # renamed first, in case of a kill

    def newest(self) -> RunState | None:
        """Return the latest complete state, or None if there are no states; warn about damaged states.

        Raises:
            OSError: If a URL cannot be read.
            ValueError: If all states are damaged.
        """
        names = self.names()
        for name in reversed(names):
            path = join_path(self.folder, name)
            local_copy = None
            if is_url(self.folder):
                local_copy = Path(tempfile.mkdtemp(prefix="lmzoo-"), name)
                copy_folder(path, local_copy, last=MANIFEST_FILE)
            try:
                state = _read_state(path, name, local_copy or Path(path))
            except (PresetError, OSError) as error:
                if local_copy:
                    shutil.rmtree(local_copy.parent, ignore_errors=True)
                reason = str(error).partition(". ")[0]
                warnings.warn(f"A checkpoint is damaged, and the one before is used: {reason}", stacklevel=2)
                continue
            if local_copy:
                weakref.finalize(state.tensors, shutil.rmtree, local_copy.parent, ignore_errors=True)
            return state
        if names:
            raise ValueError(f"All checkpoints in {self.folder} are damaged: remove them to start from scratch.")
        return None


def _write_files(directory: Path, arrays: Iterable[tuple[str, np.ndarray]], position: dict[str, Any]) -> None:
    """Write the files of a state into `directory`."""
    write_safetensors(directory / _STATE_FILE, arrays, metadata={})
    write_json(directory, _POSITION_FILE, position)
    write_manifest(directory)


def _read_state(path: str, name: str, directory: Path) -> RunState:
    """Read and verify the state in `directory`, which may be a local copy of `path`.

    Raises:
        PresetError: If a file is missing or altered.
    """
    try:
        if not verify_manifest(directory):
            raise PresetError(f"{directory} has no {MANIFEST_FILE}.")
        return RunState(path, name, read_json(directory, _POSITION_FILE), SafetensorsFiles(directory / _STATE_FILE))
    except (PresetError, OSError) as error:
        raise PresetError(str(error).replace(str(directory), path)) from None
