"""Finds and loads the models that commands name; what can be told without Keras is told before Keras is loaded."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lmzoo_cli.output import announce_keras, announced
from lmzoo_cli.task_kinds import KINDS, Kind

if TYPE_CHECKING:
    from lmzoo.tasks import Task

_LONGEST_CONFIG = 1 << 26  # bytes

_Read = TypeVar("_Read")


@dataclass(frozen=True)
class StoredModel:
    """A model that exists; it has not been loaded yet.

    Attributes:
        source: as the user gave it.
        kind: the kind of its task; None if only loading it can tell.
        labels: names of its classes; None if it has no classes.
    """

    source: str
    kind: Kind | None
    labels: list[str] | None


def find_model(source: str) -> StoredModel:
    """Finds a .keras file, a preset or a checkpoint, without Keras and without downloading anything.

    Raises:
        FileNotFoundError: if there is no such file.
        PresetError: if there is no such preset.
    """
    path = Path(source)
    if path.suffix == ".keras" or path.is_file():
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {path}.")
        if not zipfile.is_zipfile(path):
            raise ValueError(f"{path} cannot be loaded: it is damaged, or not a .keras file.")
        stored = _config_in(path)
    else:
        from lmzoo.files.preset_files import TASK_FILE, read_json
        from lmzoo.presets.catalog import local_directory

        directory = local_directory(source)
        stored = read_json(directory, TASK_FILE) if directory and (directory / TASK_FILE).is_file() else {}
    config = stored.get("config")
    if not isinstance(config, dict):
        return StoredModel(source, None, None)
    of_class = [kind for kind in KINDS if kind.saved_as == stored.get("registered_name")]
    kind = next((kind for kind in of_class if kind.reading.multi_label == bool(config.get("multi_label"))), None)
    if kind is None or not kind.reading.names:
        return StoredModel(source, kind, None)
    return StoredModel(source, kind, config.get("labels") or [*map(str, range(config.get("num_classes") or 0))])


def _config_in(path: Path) -> dict[str, Any]:
    """The configuration in a .keras file; empty if it cannot be read, which loading will explain."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("config.json") as file:
            stored = json.loads(file.read(_LONGEST_CONFIG))
    except Exception:  # of many types: the file may hold anything
        return {}
    return stored if isinstance(stored, dict) else {}


def load_task(model: StoredModel) -> tuple[Kind, Task]:
    """Loads a task; returns its kind, too.

    Raises:
        ValueError: if the model cannot be loaded, or is not a task of the command line.
    """
    source, path = model.source, Path(model.source)
    announce_keras()
    with announced(f"Loading {source}"):
        import lmzoo.models  # noqa: F401 - registers families and tasks

        if path.is_file():
            from lmzoo.tasks.base.saving import load_keras_file

            try:
                task = load_keras_file(path)
            except Exception as error:  # Keras' own differ in type and length
                reason = str(error).strip().split("\n")[0]
                raise ValueError(f"{path} cannot be loaded: {reason}") from None
        else:
            task = _head_of(source).from_preset(source)
    kind = next((kind for kind in KINDS if kind.fits(task)), None)
    if kind is None:
        raise ValueError(f"{source} holds a {type(task).__name__}, which is not a task. See `lmzoo fit`.")
    return kind, task


def load_with_examples(model: str, read: Callable[[Kind, list[str] | None], _Read]) -> tuple[Kind, Task, _Read]:
    """Loads a task and reads examples for it: these first where the kind is known, so that errors come at once.

    Args:
        model: as the user gave it.
        read: takes the task's kind and the names of its classes, or None if it has no classes.

    Raises:
        OSError: if there is no such model.
        ValueError: from `read`, and as from `load_task`.
    """
    found = find_model(model)
    if found.kind is not None:
        with announced("Reading the examples"):
            examples = read(found.kind, found.labels)
        return *load_task(found), examples
    kind, task = load_task(found)
    with announced("Reading the examples"):
        return kind, task, read(kind, task.class_names if kind.reading.names else None)


def _head_of(preset: str) -> Any:
    """The class of the task that can use the head of a preset or checkpoint."""
    from lmzoo.presets.source import open_source
    from lmzoo.registry.head_kinds import task_that_reads

    found = task_that_reads(open_source(preset).head)
    if found is None or found.head_kind not in {kind.head for kind in KINDS}:
        raise ValueError(f"{preset} holds no head of a task, only a backbone. Train one with `lmzoo fit`.")
    return found
