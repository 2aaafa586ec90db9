"""The source of a model: a preset of lmzoo, or a checkpoint of another library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import keras

from lmzoo.checkpoints.config_table import Arguments
from lmzoo.checkpoints.detect import find_checkpoint
from lmzoo.common.arguments import require
from lmzoo.errors import ArgumentError
from lmzoo.files.preset_files import JsonFiles
from lmzoo.presets.catalog import open_preset
from lmzoo.presets.keras_preset import KerasPreset
from lmzoo.registry.family import families, family_of
from lmzoo.registry.head_kinds import HasHead
from lmzoo.text import Preprocessor


class Source(Protocol):
    """A directory with a model, whose weights have not been read yet: a `KerasPreset` or a `Checkpoint`.

    Each of its files is opened once, when it is first needed.
    """

    @property
    def directory(self) -> Path:
        """Directory of the preset or checkpoint."""

    @property
    def head(self) -> str | None:
        """Kind of the stored head, or None; if its task is unknown, the name of the task's class."""

    @property
    def backbone_class(self) -> type[keras.Model]:
        """The class of the stored backbone."""

    def build(self, overrides: Mapping[str, Any], load_weights: bool = True) -> keras.Model:
        """Build the backbone with random weights.

        Args:
            overrides: Arguments of its constructor in place of the stored ones.
            load_weights: Whether the stored weights are going to be loaded.

        Raises:
            PresetError: If the stored weights are those of a far smaller model.
        """

    def head_of(self, cls: type[HasHead]) -> Arguments | None:
        """Return the constructor arguments for task `cls` if its head is stored, else None.

        A head that is a part of the stored one counts as stored.
        """

    def preprocessor(self) -> Preprocessor:
        """Return the stored tokenizer and packing rule.

        Raises:
            PresetError: If files are missing, or describe what lmzoo does not support.
        """

    def load(self, model: keras.Model, with_head: bool = True) -> object:
        """Load the stored weights into a backbone or a task.

        Args:
            model: The backbone or the task.
            with_head: Whether the head of a task is stored; otherwise only its backbone is loaded.

        Raises:
            PresetError: Naming the first weight that is missing, left over, or of another shape.
        """

    def report(self, model: keras.Model) -> dict[str, str]:
        """Check all weights as `load` does, for a model of the same kind; return a description of each part by name."""

    def close(self) -> None:
        """Close the weights' files, after which nothing can be loaded."""


def open_source(preset: str | Path, family: str | None = None) -> Source:
    """Open a preset of lmzoo or a checkpoint of another library, without reading its weights.

    `family` names the family of a checkpoint that does not tell it.

    Raises:
        ValueError: If there is no such family, or the preset is of another one.
    """
    require(family is None or family in families(), "family", f"one of {', '.join(families())}", family)
    files = JsonFiles(open_preset(preset))
    source: Source = find_checkpoint(files, family) or KerasPreset(files)
    if family is not None and (stored := family_of(source.backbone_class).name) != family:
        message = f"The preset {str(preset)!r} is of the family {stored!r}, but `family` is {family!r}."
        raise ArgumentError(message, "family")
    return source
