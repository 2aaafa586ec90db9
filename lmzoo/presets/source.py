"""Model sources: lmzoo's own presets and checkpoints of other libraries."""

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
from lmzoo.registry.family import families, get_family
from lmzoo.registry.head_kinds import HasHead
from lmzoo.text import Preprocessor


class Source(Protocol):
    """A model directory whose weights have not been read yet: a `KerasPreset`, `Checkpoint` or `SentenceCheckpoint`.

    Each file is opened once, on first use.
    """

    @property
    def directory(self) -> Path:
        """Directory of the preset or checkpoint."""

    @property
    def head(self) -> str | None:
        """Kind of the stored head, or its task's class name if no known task has this kind; None without a head."""

    @property
    def backbone_class(self) -> type[keras.Model]:
        """Class of the stored backbone."""

    def build(self, overrides: Mapping[str, Any], load_weights: bool = True) -> keras.Model:
        """Build the backbone with random weights.

        Args:
            overrides: Constructor arguments that replace the stored ones.
            load_weights: Whether the stored weights will be loaded into the backbone. If so, their sizes are compared
                with the configuration first.

        Raises:
            PresetError: If the configuration is invalid, or describes a far larger model than the stored weights.
        """

    def get_head_arguments(self, cls: type[HasHead]) -> Arguments | None:
        """Return the constructor arguments for task `cls` if its head is stored, else None.

        A head that is part of the stored head counts as stored.
        """

    def preprocessor(self) -> Preprocessor:
        """Return a preprocessor with the stored tokenizer, packing and sequence length.

        Raises:
            PresetError: If a file is missing, or describes an unsupported tokenizer or packing.
        """

    def load(self, model: keras.Model, with_head: bool = True) -> object:
        """Load the stored weights into a backbone or task.

        Args:
            model: Backbone or task.
            with_head: Whether to load the head of a task; if False, only its backbone is loaded.

        Raises:
            PresetError: If the stored weights do not match the model's.
        """

    def load_shared(self, model: HasHead) -> list[str]:
        """Load the stored weights into a task whose head has only some weights in common with the stored head.

        Args:
            model: Task.

        Returns:
            The paths of the head's weights that are not loaded.

        Raises:
            PresetError: If the stored weights do not match the backbone's.
        """

    def report(self, model: keras.Model) -> dict[str, str]:
        """Load all weights into `model` and return a description of each part of the source, by name."""

    def close(self) -> None:
        """Close the weight files; nothing can be loaded afterwards."""


def open_source(preset: str | Path, family: str | None = None, task: str | None = None) -> Source:
    """Open a preset of lmzoo or a checkpoint of another library, without reading its weights.

    Args:
        preset: Name, handle or path, as for `from_preset`.
        family: Name of the family, such as "bert", for a checkpoint that does not specify it.
        task: Name of the task to load from a preset with several tasks, or None.

    Raises:
        ValueError: If the preset cannot be opened or has no task named `task`, or `family` is unknown or is not the
            model's family.
    """
    require(family is None or family in families(), "family", f"one of {', '.join(families())}", family)
    files = JsonFiles(open_preset(preset))
    source: Source = (None if task else find_checkpoint(files, family)) or KerasPreset(files, task)
    if family is not None and (stored_family := get_family(source.backbone_class).name) != family:
        message = f"The preset {str(preset)!r} is of the family {stored_family!r}, but `family` is {family!r}."
        raise ArgumentError(message, "family")
    return source
