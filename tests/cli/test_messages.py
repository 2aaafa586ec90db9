"""Errors, notes and warnings of commands: one line each, errors with their option."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import warnings
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from lmzoo.common.arguments import require
from lmzoo.errors import ArgumentError, PathExistsError, PresetError
from lmzoo_cli import messages
from lmzoo_cli.messages import CommandGroup, exit_when_stopped

app = typer.Typer(cls=CommandGroup)
group = typer.Typer()
app.add_typer(group, name="group")
RAISED: list[BaseException] = []


def _fail() -> None:
    raise RAISED.pop()


@app.command()
def command(
    path: str,
    batch_size: int = 1,
    header: Annotated[bool, typer.Option("--header/--no-header")] = True,
    output: Annotated[str, typer.Option("--output", "-o")] = "",
) -> None:
    _fail()


@group.command()
def inner(word: str = "") -> None:
    _fail()


@app.command()
def notes() -> None:
    for _ in range(2):
        logging.getLogger("lmzoo.presets").info("a note")
        warnings.warn("a warning", stacklevel=1)


@app.command()
def stopped() -> None:
    with exit_when_stopped("there"):
        _fail()


def run(error: BaseException, *words: str, code: int = 1) -> str:
    RAISED.append(error)
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code
    return result.stderr


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ArgumentError("Too few.", "batch_size"), "Too few. Option: --batch-size."),
        (ArgumentError("No columns.", "header"), "No columns. Option: --header/--no-header."),
        (PresetError("It is there.", "output"), "It is there. Option: --output."),
        (ArgumentError("Not found.", "path"), "Not found."),  # no option
        (ArgumentError("Odd.", "num_heads"), "Odd."),
        (ArgumentError("Odd."), "Odd."),
        (PathExistsError("a exists."), "a exists."),  # the command has no --overwrite
        (FileNotFoundError(2, "No such file", "a.csv"), "There is no a.csv."),
        (IsADirectoryError(21, "Is a directory", "a"), "a is a directory. Give a file."),
        (ImportError("Install it."), "Install it."),
        (
            ModuleNotFoundError("No module named 'jax'", name="jax"),
            "JAX is not installed: pip install 'lmzoo[jax]', or set KERAS_BACKEND=tensorflow.",
        ),
        (ModuleNotFoundError("No module named 'x'", name="x"), "No module named 'x'"),
    ],
)
def test_an_error_is_a_line_with_its_option(error, line):
    assert run(error, "command", "x") == f"Error: {line}\n"


def test_a_closed_pipe_is_no_error(monkeypatch):
    """Programs such as head end before they have read everything."""
    error = BrokenPipeError(errno.EPIPE, "Broken pipe")
    assert run(error, "command", "x") == "Error: [Errno 32] Broken pipe\n"  # of a connection, for example
    monkeypatch.setattr(messages, "_is_closed", lambda stream: True)
    assert run(error, "command", "x") == ""


def test_closed_outputs_are_found():
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        stream.write("one line")
        assert not messages._is_closed(stream)
        os.close(reader)
        stream.write("another line")
        assert messages._is_closed(stream)
        with pytest.raises(BrokenPipeError):
            stream.close()


def test_errors_of_subcommands_name_the_option():
    assert run(ArgumentError("Which one?", "word"), "group", "inner") == "Error: Which one? Option: --word.\n"


def test_argument_errors_hold_the_argument_and_can_be_pickled():
    with pytest.raises(ArgumentError, match="`top_k` must be positive, got 0") as raised:
        require(False, "top_k", "positive", 0)
    assert raised.value.argument == "top_k"
    copy = pickle.loads(pickle.dumps(raised.value))  # workers send errors pickled
    assert (str(copy), copy.argument) == (str(raised.value), "top_k")


def test_unexpected_errors_keep_their_traceback():
    RAISED.append(ZeroDivisionError())
    assert isinstance(CliRunner().invoke(app, ["command", "x"]).exception, ZeroDivisionError)


@pytest.mark.filterwarnings("default:a warning")
def test_notes_and_warnings_are_shown_once():
    result = CliRunner().invoke(app, ["notes"])
    assert result.stderr == "Note: a note\nWarning: a warning\n"
    assert logging.getLogger("lmzoo").handlers == []


def test_stopped_runs_say_how_to_continue():
    assert run(KeyboardInterrupt(), "stopped", code=130) == "Stopped. The same command continues from there.\n"
    assert run(InterruptedError("Stopped after step 3."), "stopped", code=143) == "Stopped after step 3.\n"
    with pytest.raises(KeyboardInterrupt), exit_when_stopped(None):
        raise KeyboardInterrupt
