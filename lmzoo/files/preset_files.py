"""The names of the files in a preset's directory (KerasHub's layout), and functions for its JSON files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmzoo.errors import PresetError
from lmzoo.files.inside import has_file

CONFIG_FILE = "config.json"  # the backbone, serialized by Keras
METADATA_FILE = "metadata.json"  # family, parameter count, languages, license, versions, date
TOKENIZER_FILE = "tokenizer.json"
PREPROCESSOR_FILE = "preprocessor.json"
TASK_FILE = "task.json"  # a task's head; absent from a bare backbone's preset
MODEL_WEIGHTS_FILE = "model.weights.h5"
TASK_WEIGHTS_FILE = "task.weights.h5"
MANIFEST_FILE = "manifest.json"  # size and sha256 of all the others
ASSETS_DIR = "assets"
TOKENIZER_ASSETS_DIR = f"{ASSETS_DIR}/tokenizer"

# The entries of a preset at the top level of its directory. Anything else there (README.md, .git) is the user's.
PRESET_ENTRIES = frozenset({
    CONFIG_FILE, METADATA_FILE, TOKENIZER_FILE, PREPROCESSOR_FILE, TASK_FILE, MODEL_WEIGHTS_FILE, TASK_WEIGHTS_FILE,
    MANIFEST_FILE, ASSETS_DIR,
})  # fmt: skip


def read_json(directory: Path, name: str) -> dict[str, Any]:
    """Read the JSON object in the file `name` of a preset.

    Raises:
        PresetError: If the file is missing, unreadable or not a JSON object.
    """
    value = _read(directory, name)
    if not isinstance(value, dict):
        raise PresetError(f"{Path(directory, name)} must hold a JSON object, got {type(value).__name__}.")
    return value


def read_metadata(directory: Path) -> dict[str, Any]:
    """Read what a preset says of itself; files of November 2026 and before have `licence` for `license`.

    Raises:
        PresetError: As `read_json`.
    """
    metadata = read_json(directory, METADATA_FILE)
    if "licence" in metadata:
        metadata.setdefault("license", metadata.pop("licence"))
    return metadata


def read_json_list(directory: Path, name: str) -> list[dict[str, Any]]:
    """Read the JSON objects in the list in the file `name` of a preset.

    Raises:
        PresetError: If the file is missing, unreadable or not a list of one or more JSON objects.
    """
    values = _read(directory, name)
    if not isinstance(values, list) or not values or not all(isinstance(value, dict) for value in values):
        raise PresetError(f"{Path(directory, name)} must hold a list of objects, got {values!r:.100}.")
    return values


def _read(directory: Path, name: str) -> Any:
    path = Path(directory, name)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PresetError(f"The preset in {directory} has no {name}, which is needed.") from None
    except (OSError, ValueError, RecursionError) as error:  # unreadable, not UTF-8, not JSON, nested too deeply
        raise PresetError(f"{path} cannot be read as JSON ({error}); fetch or save the preset again.") from error


class JsonFiles:
    """The JSON files of a directory, each parsed when it is first read, and kept.

    Read a vocabulary by `read_json`: it is large and needed once.

    Attributes:
        directory: The directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._contents: dict[str, Mapping[str, Any]] = {}

    def read(self, name: str) -> Mapping[str, Any]:
        """Return the object in a file.

        Raises:
            PresetError: If the file is missing, unreadable or not a JSON object.
        """
        if name not in self._contents:
            self._contents[name] = read_json(self.directory, name)
        return self._contents[name]

    def read_if_present(self, name: str) -> Mapping[str, Any]:
        """Return the object in a file, or an empty one if the directory has no such file.

        Raises:
            PresetError: As for `read`, or if the file is a link out of the directory.
        """
        return self.read(name) if has_file(self.directory, name) else {}


def write_json(directory: Path, name: str, value: Mapping[str, object] | Sequence[Mapping[str, object]]) -> None:
    """Write an object or a list of objects into the file `name` of a preset as indented JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    Path(directory, name).write_text(text + "\n", encoding="utf-8")
