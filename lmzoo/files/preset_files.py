"""File names of presets, in KerasHub's layout, and reading and writing of their JSON files."""

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
TASK_FILE = "task.json"  # a task and its head; absent from the preset of a bare backbone
MODEL_WEIGHTS_FILE = "model.weights.h5"
TASK_WEIGHTS_FILE = "task.weights.h5"
MANIFEST_FILE = "manifest.json"  # size and sha256 of all other files
ASSETS_DIR = "assets"
HEADS_DIR = "heads"  # a directory for each of several tasks, with its task, weights and preprocessor
TOKENIZER_ASSETS_DIR = f"{ASSETS_DIR}/tokenizer"

# Top-level entries of a preset's directory. Other entries there (README.md, .git) belong to the user.
PRESET_ENTRIES = frozenset({
    CONFIG_FILE, METADATA_FILE, TOKENIZER_FILE, PREPROCESSOR_FILE, TASK_FILE, MODEL_WEIGHTS_FILE, TASK_WEIGHTS_FILE,
    MANIFEST_FILE, ASSETS_DIR, HEADS_DIR,
})  # fmt: skip


def read_json(directory: Path, name: str) -> dict[str, Any]:
    """Read a JSON object from the file `name` of a preset.

    Raises:
        PresetError: If the file is missing, unreadable or not a JSON object.
    """
    value = _parse_json(directory, name)
    if not isinstance(value, dict):
        raise PresetError(f"{Path(directory, name)} must hold a JSON object, got {type(value).__name__}.")
    return value


def read_metadata(directory: Path) -> dict[str, Any]:
    """Read the metadata of a preset: family, parameter count, languages, license, versions and date.

    Presets written until November 2026 store the license as `licence`; it is returned as `license`.

    Raises:
        PresetError: If the file is missing, unreadable or not a JSON object.
    """
    metadata = read_json(directory, METADATA_FILE)
    if "licence" in metadata:
        metadata.setdefault("license", metadata.pop("licence"))
    return metadata


def read_json_list(directory: Path, name: str) -> list[dict[str, Any]]:
    """Read a list of JSON objects from the file `name` of a preset.

    Raises:
        PresetError: If the file is missing, unreadable or not a list of one or more JSON objects.
    """
    values = _parse_json(directory, name)
    if not isinstance(values, list) or not values or not all(isinstance(value, dict) for value in values):
        raise PresetError(f"{Path(directory, name)} must hold a list of objects, got {values!r:.100}.")
    return values


def _parse_json(directory: Path, name: str) -> Any:
    """Parse the file `name` of a preset as JSON.

    Raises:
        PresetError: If the file is missing or unreadable.
    """
    path = Path(directory, name)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PresetError(f"The preset in {directory} has no {name}, which is needed.") from None
    except (OSError, ValueError, RecursionError) as error:  # unreadable, not UTF-8, not JSON, nested too deeply
        raise PresetError(f"{path} cannot be read as JSON ({error}); fetch or save the preset again.") from error


class JsonFiles:
    """A reader of the JSON files in a directory that parses each file only once.

    Read vocabularies with `read_json` instead: they are large and needed only once.

    Attributes:
        directory: Path, the directory of the files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._contents: dict[str, Mapping[str, Any]] = {}

    def read(self, name: str) -> Mapping[str, Any]:
        """Return the JSON object in the file `name`, parsed on the first call.

        Raises:
            PresetError: If the file is missing, unreadable or not a JSON object.
        """
        if name not in self._contents:
            self._contents[name] = read_json(self.directory, name)
        return self._contents[name]

    def read_if_present(self, name: str) -> Mapping[str, Any]:
        """Return the JSON object in the file `name`, or an empty dict if the file does not exist.

        Raises:
            PresetError: If the file is unreadable, not a JSON object, or a link out of the directory.
        """
        return self.read(name) if has_file(self.directory, name) else {}


def write_json(directory: Path, name: str, value: Mapping[str, object] | Sequence[Mapping[str, object]]) -> None:
    """Write an object or a list of objects to the file `name` of a preset, as indented JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    Path(directory, name).write_text(text + "\n", encoding="utf-8")
