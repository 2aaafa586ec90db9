"""What commands write: lines about their work, and tables."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

_STATUS_DELAY_SECONDS = 1.5  # after which people wonder what happens
_DIGITS = 6  # float32 holds seven, of which sums in another order change the last


# === Lines ===


def say(line: str) -> None:
    """Print a line on standard error."""
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def announce_keras() -> None:
    """Say that Keras is loaded, which takes seconds, unless it is already."""
    if "keras" not in sys.modules:
        say("Loading Keras...")


@contextmanager
def show_status(work: str) -> Iterator[Callable[[], None]]:
    """Say what a `with` block does if it takes more than a moment.

    Yields:
        A function to call as soon as something else is seen.
    """
    timer = threading.Timer(_STATUS_DELAY_SECONDS, say, [f"{work}..."])
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def read_lines() -> list[str]:
    """Return the lines of standard input."""
    return [line.rstrip("\r\n") for line in sys.stdin]


# === Numbers ===


def round_numbers(value: Any) -> Any:
    """Return a value with six significant digits in each of its numbers; arrays become lists."""
    value = value.tolist() if hasattr(value, "tolist") else value  # numpy's
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: round_numbers(part) for name, part in value.items()}
    return [round_numbers(part) for part in value] if isinstance(value, (list, tuple)) else value


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON with rounded numbers; NaN and infinity, which JSON does not have, become null."""
    finite = json.loads(json.dumps(round_numbers(value)), parse_constant=lambda name: None)
    return json.dumps(finite, indent=indent, ensure_ascii=False)


# === Tables ===


def show(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table on a terminal, and tab-separated lines with rounded numbers into a pipe or a file."""
    console = Console()
    if not console.is_terminal:
        print_tabs([titles, *round_numbers(rows), []])
        return
    table = plain_table()
    for i, title in enumerate(titles):
        table.add_column(title, justify="right" if i else "left")
    for row in rows:
        table.add_row(*(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row))
    console.print(table, "")


def print_tabs(rows: Iterable[Sequence[object]]) -> None:
    """Print lines of tab-separated cells."""
    for row in rows:
        typer.echo("\t".join(map(str, row)))


def plain_table(show_header: bool = True) -> Table:
    """Return an empty table without lines between its cells."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=show_header)


# === Files ===


def check_output(path: Path, overwrite: bool, suffix: str = "") -> None:
    """Check, before the work, that its result can be written.

    Raises:
        OSError: if there is something at the path that may not be replaced, or it cannot be written.
        ValueError: if the path has another suffix.
    """
    path = path.expanduser()  # shells leave the "~" of `--output=~/...` as it is
    if suffix and path.suffix != suffix:
        raise ValueError(f"The file to write must end in {suffix}, got {path}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory.")
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is a device or a pipe: give the path of a file.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists: pass --overwrite to replace it.")
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.absolute().parent, os.W_OK):
        raise PermissionError(f"{path} cannot be written.")
