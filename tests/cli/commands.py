"""Commands of `lmzoo`, run in this process."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import Result
from typer.testing import CliRunner

from lmzoo_cli.main import app

# Tracing and compiling take most of the time of tiny models.
EAGERLY = [
    pytest.mark.usefixtures("eager_functions"),
    pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_functions_eagerly` option"),
]


def run(*arguments: object, stdin: str | None = None, code: int = 0) -> Result:
    """Run `lmzoo` and check its exit code."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def run_line(line: str) -> tuple[str, Result]:
    """Run a line of a page, such as `echo TEXT | lmzoo predict ...`, and return its subcommand and the result."""
    echo, _, program = line.rpartition(" | ")
    assert not echo or echo.startswith("echo ")
    name, subcommand, *arguments = shlex.split(program, comments=True)
    assert name == "lmzoo"
    return subcommand, run(subcommand, *arguments, stdin=shlex.split(echo)[1] if echo else None)


def error_of(*arguments: object, **options: str) -> str:
    """Return the error message of a command: one line, after status lines."""
    *status, message = run(*arguments, code=1, **options).stderr.splitlines(keepends=True)
    assert all(line.endswith("...\n") for line in status), status
    assert message.startswith("Error: ")
    return message


def json_lines(result: Result) -> list[dict]:
    """Return the objects that a command writes as JSON lines, without its other output."""
    lines = result.stdout.split("\n")  # a text may hold other line ends
    return [json.loads(line, parse_constant=pytest.fail) for line in lines if line.startswith("{")]
