"""The `lmzoo` command with all of its commands."""

from lmzoo_cli import (  # noqa: F401 - add their commands
    generate_command,
    inspect_commands,
    prepare_command,
    preset_commands,
    pretrain_command,
    serving_commands,
    task_commands,
    translate_command,
)
from lmzoo_cli.app import app

__all__ = ["app"]
