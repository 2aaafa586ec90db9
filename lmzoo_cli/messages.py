"""Notes, warnings and errors of commands, each printed as one line on standard error."""

from __future__ import annotations

import logging
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from lmzoo_cli.output import announce_keras, say


class CommandGroup(TyperGroup):
    """Group of commands that prints notes, warnings and errors as single lines."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and print an error that the user can fix as one line instead of a traceback."""
        with _show_notes_and_warnings():
            try:
                return super().invoke(ctx)
            except (ImportError, ValueError, OSError) as error:
                if isinstance(error, BrokenPipeError) and _is_closed(sys.stdout):
                    raise  # typer exits without a message
                command = self.commands.get(ctx.invoked_subcommand or "")
                say(f"Error: {_describe(error, command)}")
                raise typer.Exit(1) from None


class Command(TyperCommand):
    """Command that announces that Keras is loading before it runs."""

    def invoke(self, ctx: Any) -> Any:
        """Announce that Keras is loading, which takes a few seconds, and run the command."""
        announce_keras()
        return super().invoke(ctx)


def _is_closed(stream: TextIO) -> bool:
    """Return whether the program that reads a stream, such as `| head`, has ended before it has read all text."""
    try:
        stream.flush()
    except BrokenPipeError:
        return True
    return False


def _describe(error: Exception, command: Any) -> str:
    """Describe an error in one line, with the command's option for the argument that caused it, if any."""
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"There is no {error.filename}."
    if isinstance(error, IsADirectoryError) and error.filename:
        return f"{error.filename} is a directory. Give a file."
    if isinstance(error, ModuleNotFoundError) and error.name == "jax":  # raised by Keras, which does not say what to do
        return "JAX is not installed: pip install 'lmzoo[jax]', or set KERAS_BACKEND=tensorflow."
    commands = getattr(command, "commands", {"": command}).values()
    parameters = [parameter for subcommand in commands for parameter in subcommand.params]
    matching_parameters = [parameter for parameter in parameters if parameter.name == getattr(error, "argument", None)]
    option_names = dict.fromkeys(
        name for parameter in matching_parameters for name in (*parameter.opts, *parameter.secondary_opts)
    )
    option = "/".join(name for name in option_names if name.startswith("--"))
    return f"{error} Option: {option}." if option else str(error)


@contextmanager
def _show_notes_and_warnings() -> Iterator[None]:
    """Print each warning and each of the library's log messages once while the block runs."""
    printed_lines: set[str] = set()

    def show(message: str) -> None:
        if message not in printed_lines:  # a command may read the same texts twice
            printed_lines.add(message)
            say(message)

    class NoteHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(f"Note: {record.getMessage()}")

    handler = NoteHandler()
    logger = logging.getLogger("lmzoo")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: show(f"Warning: {message}")
            yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def exit_when_stopped(directory: str | Path | None) -> Iterator[None]:
    """Exit with the signal's code if SIGINT or SIGTERM stops the block, and tell the user how to continue.

    Args:
        directory: directory of the run's state, or None if the run cannot be continued; typer then handles Ctrl-C.

    Raises:
        typer.Exit: With the exit code 130 (SIGINT) or 143 (SIGTERM).
    """
    try:
        yield
    except (InterruptedError, KeyboardInterrupt) as error:
        if directory is None:
            raise
        say(str(error) or f"Stopped. The same command continues from {directory}.")
        signal_number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
        raise typer.Exit(128 + signal_number) from None
