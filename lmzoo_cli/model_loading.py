"""Loading of tasks for commands, from `.keras` files, presets and checkpoints."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from lmzoo.files.compilation_cache import use_compilation_cache
from lmzoo.presets.catalog import find_local_directory
from lmzoo.presets.keras_files import load_keras_file
from lmzoo.presets.keras_preset import KerasPreset
from lmzoo.presets.source import open_source
from lmzoo.registry.head_kinds import find_task_for_head
from lmzoo.tasks import Task
from lmzoo.tasks.long_texts import LongTextTask
from lmzoo.text.long_texts import check_windows
from lmzoo_cli.output import show_status
from lmzoo_cli.task_kinds import KINDS, Kind

_MAX_CONFIG_BYTES = 1 << 26  # limit for the configuration in a `.keras` file


def load_task(source: str, windows: Mapping[str, Any] | None = None) -> tuple[Kind, Task]:
    """Load a task from a `.keras` file, a preset or a checkpoint, and return its kind and the task.

    Args:
        source: path of a file, or name or path of a preset.
        windows: values of the task's attributes `windows` and `stride`, which replace the stored values.

    Raises:
        OSError: If the file does not exist.
        ValueError: If the model cannot be loaded, is not a task of the command line, or does not take `windows`.
    """
    use_compilation_cache()
    with show_status(f"Loading {source}"):
        path = find_file(source)
        model = _find_preset_task(source).from_preset(source) if path is None else load_file(path)
    kind = next((kind for kind in KINDS if kind.fits(model)), None)
    if kind is None:
        raise ValueError(f"{source} holds a {type(model).__name__}, which is not a task of `lmzoo fit`.")
    if windows:
        check_reads_windows(type(model))
        for name, value in windows.items():
            setattr(model, name, value)
        check_windows(model.windows, model.stride)
    return kind, model


def check_reads_windows(task_class: type) -> None:
    """Check that tasks of a class can read long texts in windows.

    Raises:
        ValueError: If `task_class` cannot read windows.
    """
    if not issubclass(task_class, LongTextTask):
        raise ValueError(f"A {task_class.__name__} has no windows to set: leave out --windows and --stride.")


def find_kind(source: str) -> Kind | None:
    """Return the kind of a stored task without loading its weights, or None if its class cannot be determined.

    If several kinds have the same task class, the first is returned.

    Raises:
        OSError: If the file does not exist.
        ValueError: If the preset does not exist, or has no head.
    """
    path = find_file(source)
    task_class: object = None
    if path is not None:
        task_class = _read_class_in_file(path)
    elif find_local_directory(source) is not None:
        task_class = _find_preset_task(source)
    return next((kind for kind in KINDS if kind.task_class is task_class), None)


def find_file(source: str) -> Path | None:
    """Return the path of a model file, or None for a preset.

    Raises:
        FileNotFoundError: If a `.keras` file does not exist.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return path
    if path.suffix == ".keras":
        raise FileNotFoundError(f"There is no file {path}.")
    return None


def load_file(path: Path) -> keras.Model:
    """Load a `.keras` file.

    Raises:
        ValueError: If that fails; the message gives the reason in one line.
    """
    try:
        return load_keras_file(path)
    except Exception as error:  # Keras raises errors of many types, with long messages
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{path} cannot be loaded: {reason}") from None


def _read_class_in_file(path: Path) -> object:
    """Return the class of the model in a `.keras` file, or None if the file cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("config.json") as file:
            name = json.loads(file.read(_MAX_CONFIG_BYTES))["registered_name"]
    except Exception:  # any type, since the file may hold anything; loading reports the reason
        return None
    return keras.saving.get_registered_object(name)


def _find_preset_task(preset: str) -> type[Task]:
    """Return the task class for the head of a preset or checkpoint.

    Raises:
        ValueError: If there is no head of a task on the command line, or there are heads of several tasks.
    """
    source = open_source(preset)
    task_class = find_task_for_head(source.head)
    if task_class is not None and task_class in [kind.task_class for kind in KINDS]:
        return task_class
    if isinstance(source, KerasPreset) and (names := source.task_names):
        raise ValueError(
            f"{preset} holds the tasks {', '.join(names)}, and the command line reads presets of one task. Save one of "
            "them in Python: `Task.from_preset(..., task=...).save_to_preset(...)`."
        )
    raise ValueError(f"{preset} holds no head of a task, only a backbone. Train one with `lmzoo fit`.")
