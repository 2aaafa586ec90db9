"""The `lmzoo` command with all of its commands."""

from lmzoo.cli import presets, pretrain, serving, tasks  # noqa: F401 - add their commands
from lmzoo.cli.app import app

__all__ = ["app"]
