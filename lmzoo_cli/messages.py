"""What commands write about their work: notes, warnings and errors, each as one line on standard error."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from lmzoo_cli.output import announce_keras, say


class CommandGroup(TyperGroup):
    """The commands of `lmzoo`, whose notes, warnings and errors are shown as lines."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; show an error that the user can fix as one line instead of a traceback."""
        with _show_notes_and_warnings():
            try:
                return super().invoke(ctx)
            except (ImportError, ValueError, OSError) as error:
                command = self.commands.get(ctx.invoked_subcommand or "")
                say(f"Error: {_describe(error, command)}")
                raise typer.Exit(1) from None


class Command(TyperCommand):
    """A command that imports lmzoo when it runs."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; say before that Keras is loaded, which takes seconds."""
        announce_keras()
        from lmzoo import use_compilation_cache

        use_compilation_cache()
        return super().invoke(ctx)


def _describe(error: Exception, command: Any) -> str:
    """Return the message of an error, and the option of the command for the argument that it is about."""
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"There is no {error.filename}."
    commands = getattr(command, "commands", {"": command}).values()
    parameters = [parameter for one in commands for parameter in one.params]
    about = [parameter for parameter in parameters if parameter.name == getattr(error, "argument", None)]
    names = dict.fromkeys(name for parameter in about for name in (*parameter.opts, *parameter.secondary_opts))
    option = "/".join(name for name in names if name.startswith("--"))
    return f"{error} Option: {option}." if option else str(error)


@contextmanager
def _show_notes_and_warnings() -> Iterator[None]:
    """Show each message that the library logs, and each warning, once."""
    shown: set[str] = set()

    def show(message: str) -> None:
        if message not in shown:  # a command may read the same texts twice
            shown.add(message)
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
    """Exit with the code of SIGINT or SIGTERM if one of them stops the run, and say how it continues.

    Args:
        directory: where the state of the run is. None if it cannot be continued, and Ctrl-C is left to typer.
    """
    try:
        yield
    except (InterruptedError, KeyboardInterrupt) as stopped:
        if directory is None:
            raise
        say(str(stopped) or f"Stopped. The same command continues from {directory}.")
        number = signal.SIGINT if isinstance(stopped, KeyboardInterrupt) else signal.SIGTERM
        raise typer.Exit(128 + number) from None
