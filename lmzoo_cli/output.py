"""Output of commands: status lines, numbers, tables, and checks of output files."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_STATUS_DELAY_SECONDS = 1.5  # shorter work needs no status line
_DIGITS = 6  # float32 has seven significant digits, but the last one depends on the order of sums


# === Lines ===


def say(line: str) -> None:
    """Print a line on standard error."""
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def announce_keras() -> None:
    """Print that Keras is loading, which takes a few seconds, if it is not loaded yet."""
    if "keras" not in sys.modules:
        say("Loading Keras...")


@contextmanager
def show_status(work: str) -> Iterator[Callable[[], None]]:
    """Print a status line that names the work if the block takes longer than 1.5 seconds.

    Yields:
        A function that cancels the status line, to call when other output appears.
    """
    timer = threading.Timer(_STATUS_DELAY_SECONDS, say, [f"{work}..."])
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def shows_progress(output: str | None) -> bool:
    """Return whether to show a progress bar, which would disturb answers printed on a terminal."""
    return bool(output) or not sys.stdout.isatty()


def get_texts(arguments: list[str] | None) -> list[str]:
    """Return the texts among a command's arguments or, if there are none, the lines of standard input.

    Invalid UTF-8 becomes U+FFFD, with a warning. A byte order mark is removed from standard input.
    """
    from lmzoo.data.readers.text_files import open_text, read_numbered_lines
    from lmzoo.text.validate_text import clean_texts
    from lmzoo_cli.examples import open_input

    if arguments:
        return clean_texts(map(os.fsencode, arguments))
    with open_text(open_input("-"), errors="surrogateescape") as file:
        lines = [line for _, line in read_numbered_lines(file)]
    return clean_texts([line.encode("utf-8", "surrogateescape") for line in lines])


# === Numbers ===


def round_numbers(value: Any) -> Any:
    """Round the numbers in a nested value to six significant digits, and turn arrays into lists."""
    value = value.tolist() if hasattr(value, "tolist") else value  # NumPy arrays and scalars
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: round_numbers(item) for name, item in value.items()}
    return [round_numbers(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_json(value: Any, indent: int | None = None) -> str:
    """Convert a value to JSON with rounded numbers, and NaN and infinity as null."""
    finite_value = json.loads(json.dumps(round_numbers(value)), parse_constant=lambda name: None)
    return json.dumps(finite_value, indent=indent, ensure_ascii=False)


# === Tables ===


def show(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table on a terminal, or tab-separated lines with rounded numbers to a pipe or a file."""
    console = Console()
    if not console.is_terminal:
        print_tabs([titles, *round_numbers(rows), []])
        return
    table = plain_table()
    for i, title in enumerate(titles):
        table.add_column(escape(title), justify="right" if i else "left")
    for row in rows:
        table.add_row(*(f"{cell:.4f}" if isinstance(cell, float) else escape(str(cell)) for cell in row))
    console.print(table, "")


def show_parts(parts: Mapping[str, str]) -> None:
    """Print names and values as a table on a terminal, or as tab-separated lines to a pipe or a file."""
    console = Console()
    if not console.is_terminal:
        print_tabs(parts.items())
        return
    table = plain_table(show_header=False)
    for name, value in parts.items():
        table.add_row(name, escape(value))
    console.print(table)


def print_tabs(rows: Iterable[Sequence[object]]) -> None:
    """Print lines of tab-separated cells."""
    for row in rows:
        typer.echo("\t".join(map(str, row)))


def plain_table(show_header: bool = True) -> Table:
    """Return an empty table without lines between its cells."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=show_header)


# === Files ===


def check_output(path: Path, overwrite: bool, suffix: str = "") -> None:
    """Check that an output file can be written, before starting the work.

    Args:
        path: file to write; its directory is created.
        overwrite: whether an existing file may be replaced.
        suffix: required suffix of the path, if any.

    Raises:
        OSError: If `path` exists and `overwrite` is False, if it is not a regular file, or if it cannot be written.
        ValueError: If `path` does not have the suffix `suffix`.
    """
    from lmzoo.files.atomic import make_directory

    path = path.expanduser()  # shells do not expand "~" in `--output=~/...`
    if suffix and path.suffix != suffix:
        raise ValueError(f"The file to write must end in {suffix}, got {path}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory.")
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is a device or a pipe: give the path of a file.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists: pass --overwrite to replace it.")
    make_directory(path.absolute().parent)
    if not os.access(path.absolute().parent, os.W_OK):
        raise PermissionError(f"{path} cannot be written.")
