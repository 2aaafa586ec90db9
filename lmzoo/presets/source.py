"""What a preset's name stands for: a preset of lmzoo, or a checkpoint of another library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import keras

from lmzoo.checkpoints.config_table import Arguments
from lmzoo.checkpoints.detect import find_checkpoint
from lmzoo.common.arguments import require
from lmzoo.errors import ArgumentError
from lmzoo.presets.catalog import open_preset
from lmzoo.presets.keras_preset import KerasPreset
from lmzoo.registry.family import families, family_of
from lmzoo.registry.head_kinds import HasHead
from lmzoo.text import Preprocessor


class Source(Protocol):
    """A directory with a model, whose weights have not been read yet: a `KerasPreset` or a `Checkpoint`."""

    @property
    def directory(self) -> Path:
        """Where it is."""

    @property
    def head(self) -> str | None:
        """Kind of the stored head, or None; if its task is unknown, the name of the task's class."""

    @property
    def backbone_class(self) -> type[keras.Model]:
        """The class of the stored backbone."""

    def build(self, overrides: Mapping[str, Any], load_weights: bool = True) -> keras.Model:
        """Builds the backbone with random weights.

        Args:
            overrides: arguments of its constructor in place of the stored ones.
            load_weights: whether the stored weights are going to be loaded.

        Raises:
            PresetError: if they do not belong to such a model.
        """

    def head_of(self, cls: type[HasHead]) -> Arguments | None:
        """Arguments of a task's constructor, if its head is stored, by itself or as a part of another; None if not."""

    def preprocessor(self) -> Preprocessor:
        """The stored tokenizer and packing rule.

        Raises:
            PresetError: if files are missing, or describe what lmzoo does not support.
        """

    def load(self, model: keras.Model, with_head: bool = True) -> object:
        """Load the stored weights into a backbone or a task.

        Args:
            model: the backbone or the task.
            with_head: whether the head of a task is stored; otherwise only its backbone is loaded.

        Raises:
            PresetError: naming the first weight that is missing, left over, or of another shape.
        """

    def report(self, model: keras.Model) -> dict[str, str]:
        """Checks all weights as `load` does, for a model of the same kind; returns names of parts -> what was found."""


def open_source(preset: str | Path, family: str | None = None) -> Source:
    """Open a preset of lmzoo or a checkpoint of another library, without reading its weights.

    `family` names the family of a checkpoint that does not tell it.

    Raises:
        ValueError: if there is no such family, or the preset is of another one.
    """
    require(family is None or family in families(), "family", f"one of {', '.join(families())}", family)
    directory = open_preset(preset)
    source: Source = find_checkpoint(directory, family) or KerasPreset(directory)
    if family is not None and (stored := family_of(source.backbone_class).name) != family:
        message = f"The preset {str(preset)!r} is of the family {stored!r}, but `family` is {family!r}."
        raise ArgumentError(message, "family")
    return source
