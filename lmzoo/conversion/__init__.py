"""Conversion of checkpoints and presets: `lmzoo.convert`, `lmzoo.verify` and `lmzoo.save_checkpoint`."""

from lmzoo.conversion.checkpoint_writer import save_checkpoint
from lmzoo.conversion.converting import convert
from lmzoo.conversion.verifying import verify

__all__ = ["convert", "save_checkpoint", "verify"]
