"""What a preset's name stands for: a preset of lmzoo, or a checkpoint of another library."""

from __future__ import annotations

from pathlib import Path

from lmzoo.checkpoints.checkpoint import Checkpoint
from lmzoo.checkpoints.detect import find_checkpoint
from lmzoo.presets.catalog import open_preset
from lmzoo.presets.keras_preset import KerasPreset

Source = KerasPreset | Checkpoint


def open_source(preset: str | Path) -> Source:
    """Opens a preset of lmzoo or a checkpoint of another library, without reading its weights."""
    directory = open_preset(preset)
    return find_checkpoint(directory) or KerasPreset(directory)
