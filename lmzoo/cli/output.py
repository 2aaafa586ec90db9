"""What the commands write: tables, JSON lines, a progress bar."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import typer
from rich.console import Console
from rich.table import Table

from lmzoo.progress import progress_bar

if TYPE_CHECKING:
    from lmzoo.evaluation.reports import Report

_PART = 16  # batches from one step of the progress bar to the next


# === Tables ===


def show_report(report: Report) -> None:
    """Prints scores, and then the tables."""
    show(["score", "value"], list(report.scores.items()))
    for titles, rows in report.tables.values():
        show(titles, rows)


def show(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on a terminal; into a pipe or a file tab-separated lines with exact numbers."""
    console = Console()
    if not console.is_terminal:
        for row in [titles, *rows, []]:
            typer.echo("\t".join(map(str, row)))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, title in enumerate(titles):
        table.add_column(title, justify="right" if i else "left")
    for row in rows:
        table.add_row(*(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row))
    console.print(table, "")


def write_json(path: Path, content: dict[str, Any], report: Report) -> None:
    """Writes what a report says after some other content; a score that is NaN becomes null."""
    from lmzoo.files.atomic import atomic_file

    scores = {name: score if math.isfinite(score) else None for name, score in report.scores.items()}
    tables = {
        name: [dict(zip(titles, row, strict=True)) for row in rows] for name, (titles, rows) in report.tables.items()
    }
    with atomic_file(path) as temporary:
        text = json.dumps({**content, "scores": scores, **tables}, indent=1, ensure_ascii=False)
        temporary.write_text(text, "utf-8")


# === Files ===


def check_output(path: Path, overwrite: bool, suffix: str = "") -> None:
    """Finds out before the work, not after it, that its result cannot be written."""
    if suffix and path.suffix != suffix:
        raise ValueError(f"The file to write must end in {suffix}, got {path}.")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists: pass --overwrite to replace it.")
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.absolute().parent, os.W_OK):
        raise PermissionError(f"{path} cannot be written.")


@contextmanager
def output_to(path: Path | None) -> Iterator[BinaryIO]:
    """Gives a file to write to, which is there when it is complete, or the standard output."""
    from lmzoo.files.atomic import atomic_file

    if path is None:
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # `head` has seen enough; what is still in the buffer must go somewhere at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        return
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        yield file


def json_line(answer: Any) -> bytes:
    """A verb's answer to one example."""
    line = json.dumps(answer, ensure_ascii=False, default=lambda array: array.tolist())
    return f"{line}\n".encode(errors="replace")


# === Examples ===


def count_of(x: Any) -> int:
    """How many examples there are; a tuple holds columns."""
    return len(x[0] if isinstance(x, tuple) else x)


def rows_of(x: Any, rows: Iterable[int]) -> Any:
    """Some of the examples."""
    return tuple(rows_of(side, rows) for side in x) if isinstance(x, tuple) else [x[row] for row in rows]


@contextmanager
def in_parts(x: Any, batch_size: int, shown: bool = True) -> Iterator[Iterator[Any]]:
    """Gives the examples in parts of a few batches, and shows how many are done."""
    count, size = count_of(x), _PART * batch_size
    with progress_bar("Predicting", count, "examples", shown) as advance:

        def parts() -> Iterator[Any]:
            for start in range(0, count, size):
                rows = range(start, min(start + size, count))
                yield rows_of(x, rows)
                advance(len(rows))

        yield parts()
