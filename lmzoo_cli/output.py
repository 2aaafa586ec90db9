"""What the commands write: lines about their work, tables, a progress bar."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import typer
from rich.console import Console
from rich.table import Table

from lmzoo.common.progress import progress_bar
from lmzoo.files.urls import whole_file
from lmzoo_cli.examples import Inputs

if TYPE_CHECKING:
    from lmzoo.evaluation.reports import Cell, Report

_PART = 16  # batches between two updates of the progress bar
_MOMENT = 1.5  # seconds in which nobody wonders what happens
_DIGITS = 6  # that mean something: float32 holds seven, of which sums in another order change the last


# === Lines ===


def say(line: str) -> None:
    """Prints a line on standard error."""
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def announce_keras() -> None:
    """Says, before an import, that Keras is loaded, which takes seconds; nothing if it has been loaded already."""
    if "keras" not in sys.modules:
        say("Loading Keras...")


@contextmanager
def announced(work: str) -> Iterator[Callable[[], None]]:
    """Says what a `with` block does, if it takes more than a moment.

    Yields:
        A function to call as soon as something else is seen.
    """
    timer = threading.Timer(_MOMENT, say, [f"{work}..."])
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def rounded(value: Any) -> Any:
    """The value with the digits of its numbers that mean something; arrays become lists."""
    value = value.tolist() if hasattr(value, "tolist") else value  # numpy's
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, (list, tuple)) else value


def json_of(value: Any, indent: int | None = None) -> str:
    """The value as JSON with `rounded` numbers; those that are not finite, which JSON does not have, become null."""

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: finite(part) for name, part in value.items()}
        if isinstance(value, list):
            return [finite(part) for part in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(rounded(value)), indent=indent, ensure_ascii=False, allow_nan=False)


# === Tables ===


def show_report(report: Report) -> None:
    """Prints the scores, and then the tables."""
    show(["score", "value"], list(report.scores.items()))
    for titles, rows in report.tables.values():
        show(titles, rows)


def show(titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Prints a table on a terminal, and tab-separated lines with six digits of each number into a pipe or a file."""
    console = Console()
    if not console.is_terminal:
        print_tabs([titles, *rounded(rows), []])
        return
    table = plain_table()
    for i, title in enumerate(titles):
        table.add_column(title, justify="right" if i else "left")
    for row in rows:
        table.add_row(*(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row))
    console.print(table, "")


def print_tabs(rows: Iterable[Sequence[object]]) -> None:
    """Prints lines of tab-separated cells."""
    for row in rows:
        typer.echo("\t".join(map(str, row)))


def plain_table(show_header: bool = True) -> Table:
    """An empty table without lines between its cells."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=show_header)


def write_json(path: Path, content: dict[str, object], report: Report) -> None:
    """Writes `content` and a report into a file, as `json_of` says."""
    from lmzoo.files.atomic import atomic_file

    tables = {
        name: [dict(zip(titles, row, strict=True)) for row in rows] for name, (titles, rows) in report.tables.items()
    }
    with atomic_file(path) as temporary:
        temporary.write_text(json_of({**content, "scores": report.scores, **tables}, indent=1), "utf-8")


# === Files ===


def check_output(path: Path, overwrite: bool, suffix: str = "") -> None:
    """Checks that a result can be written, before the work and not after it."""
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


@contextmanager
def output_to(path: str | None) -> Iterator[BinaryIO]:
    """Yields the standard output, or a file that appears under its name when it is complete."""
    if path is None:
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # `head` has seen enough; what is still in the buffer must go somewhere at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        return
    with whole_file(path) as file:
        yield file


# === Examples ===


def count_of(x: Inputs) -> int:
    """The number of examples."""
    return len(x[0] if isinstance(x, tuple) else x)


def take(x: Inputs, indices: Sequence[int]) -> Inputs:
    """The examples with these indices."""
    return tuple([part[i] for i in indices] for part in x) if isinstance(x, tuple) else [x[i] for i in indices]


@contextmanager
def in_parts(x: Inputs, batch_size: int, shown: bool = True) -> Iterator[Iterator[Inputs]]:
    """Yields an iterator over the examples in parts of a few batches, and shows how many are done."""
    count, size = count_of(x), _PART * batch_size
    with progress_bar("Predicting", count, "examples", shown) as advance:

        def parts() -> Iterator[Inputs]:
            for start in range(0, count, size):
                indices = range(start, min(start + size, count))
                yield take(x, indices)
                advance(len(indices))

        yield parts()
