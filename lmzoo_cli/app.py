"""The app that commands register with, and how it shows errors and warnings."""

from __future__ import annotations

import importlib.metadata
import logging
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

_ORDER = ("fit", "evaluate", "predict", "generate", "translate", "inspect", "pretrain", "prepare", "presets", "convert")


class _Ordered(TyperGroup):
    """Lists the commands in the order in which they are needed, rather than that of the imports."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: [*_ORDER, name].index(name))


app = typer.Typer(
    cls=_Ordered,
    help="Train, evaluate, convert and serve language models such as BERT, RoBERTa, ALBERT and ELMo.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lmzoo {importlib.metadata.version('lmzoo')}")
        raise typer.Exit


class _Notes(logging.Handler):
    """Shows what the library logs."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self.show = show

    def emit(self, record: logging.LogRecord) -> None:
        self.show(f"Note: {record.getMessage()}")


# What messages say of arguments in Python, and on the command line instead, if `_with_options` cannot find out.
_OPTIONS = {
    "(`header`)": "(`--no-header`)",
    "(`encoding`)": "(`--encoding`)",
    "as `format`": "as `--format`",
    "another `work`": "another `--work`",
    "In `validation_data`": "In `--validation`",
}


def _with_options(message: str) -> str:
    """The message with options of the command line instead of arguments in Python."""
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    options = {p.name: p.opts[0] for command in commands for p in command.params if p.opts[0].startswith("--")}

    def option(match: re.Match[str]) -> str:
        name, value = match.groups()
        plain_word = value is None and "_" not in name and match.start() > 0  # may be any word within a sentence
        if name not in options or plain_word:
            return match.group()
        return f"`{options[name]}`" if value in (None, "True") else f"`{options[name]} {value.strip(chr(34))}`"

    for argument, other in _OPTIONS.items():
        message = message.replace(argument, other)
    return re.sub(r"`(\w+)(?:=([^`]+))?`", option, message)


@contextmanager
def messages() -> Iterator[None]:
    """Prints each note and warning, and an error that the user can fix, as one line instead of a traceback."""
    console, shown, log = Console(stderr=True), set(), logging.getLogger("lmzoo")

    def show(message: str) -> None:
        if message not in shown:  # a command may read the same texts twice
            shown.add(message)
            console.print(message, markup=False, soft_wrap=True)

    notes = _Notes(show)
    log.addHandler(notes)
    log.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: show(f"Warning: {message}")
            yield
    except (ImportError, ValueError, OSError) as error:
        message = _with_options(str(error))
        if isinstance(error, FileNotFoundError) and error.filename:
            message = f"There is no {error.filename}."
        console.print(f"Error: {message}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    finally:
        log.removeHandler(notes)


@contextmanager
def stoppable(folder: str | Path | None) -> Iterator[None]:
    """Ends the command with the exit code of SIGINT or SIGTERM if one of them stops a run.

    Args:
        folder: where the run's state is; None if it cannot be continued, and Ctrl-C is left to typer.
    """
    try:
        yield
    except (InterruptedError, KeyboardInterrupt) as stopped:
        if folder is None:
            raise
        message = str(stopped).replace("`fit`", "command") or f"Stopped. The same command continues from {folder}."
        Console(stderr=True).print(message, markup=False, highlight=False, soft_wrap=True)
        number = signal.SIGINT if isinstance(stopped, KeyboardInterrupt) else signal.SIGTERM
        raise typer.Exit(128 + number) from None


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Holds the options of `lmzoo` itself."""
