"""The JSON files of a checkpoint's directory, each parsed once."""

from __future__ import annotations

from pathlib import Path

from lmzoo.checkpoints.config_table import JsonObject
from lmzoo.checkpoints.tokenizers.vocabulary_files import has_file
from lmzoo.files.preset_files import read_json


class JsonFiles:
    """The JSON files of a directory, each parsed when it is first read, and kept.

    Read a vocabulary by `read_json`: it is large and needed once.

    Attributes:
        directory: The directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._contents: dict[str, JsonObject] = {}

    def read(self, name: str) -> JsonObject:
        """Return the object in a file.

        Raises:
            PresetError: If the file is missing, unreadable or not a JSON object.
        """
        if name not in self._contents:
            self._contents[name] = read_json(self.directory, name)
        return self._contents[name]

    def read_if_present(self, name: str) -> JsonObject:
        """Return the object in a file, or an empty one if the directory has no such file.

        Raises:
            PresetError: As for `read`, or if the file is a link out of the directory.
        """
        return self.read(name) if has_file(self.directory, name) else {}
