"""The `lmzoo` command with all its subcommands."""

from __future__ import annotations

import importlib.metadata
import io
import os
import sys
from typing import Annotated

import typer

from lmzoo_cli.env_command import env
from lmzoo_cli.generation_commands import classify, generate, translate
from lmzoo_cli.inspect_commands import inspect
from lmzoo_cli.messages import Command, CommandGroup
from lmzoo_cli.prepare_command import prepare
from lmzoo_cli.preset_commands import convert, presets, verify
from lmzoo_cli.pretrain_command import pretrain
from lmzoo_cli.search_commands import embed, rank, search
from lmzoo_cli.serving_commands import export, serve
from lmzoo_cli.task_commands import evaluate, fit, predict

_COMMANDS = {
    "Models": (fit, evaluate, predict, generate, classify, translate),
    "Search": (embed, search, rank),
    "Pre-training": (pretrain, prepare),
    "Presets and checkpoints": (presets, convert, verify),
    "Serving": (export, serve),
    "Help": (env,),
}

app = typer.Typer(
    cls=CommandGroup,
    help="Train, evaluate, convert and serve language models such as BERT, RoBERTa, ALBERT and ELMo.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _panel, _commands in _COMMANDS.items():
    for _command in _commands:
        app.command(cls=Command, rich_help_panel=_panel)(_command)
app.add_typer(inspect, name="inspect", rich_help_panel="Models")


def _print_version(is_set: bool) -> None:
    """Print the version and exit if `--version` is set."""
    if is_set:
        typer.echo(f"lmzoo {importlib.metadata.version('lmzoo')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Define the options of `lmzoo` itself."""


def main() -> None:
    """Run the command line, without TensorFlow's log messages by default."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when a command imports TensorFlow
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an answer may hold characters that the locale's encoding lacks
    app(prog_name="lmzoo")
