"""Progress bars for operations that have no Keras progress bar."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

_DELAY_SECONDS = 1.0  # shorter operations get no bar

_Item = TypeVar("_Item")


class Advance(Protocol):
    """Function that advances a progress bar."""

    def __call__(self, count: float, note: str = "") -> None:
        """Advance the bar by `count` units, and show `note` after the bar."""


@contextmanager
def progress_bar(description: str, total: float | None = None, unit: str = "", show: bool = True) -> Iterator[Advance]:
    """Show a progress bar on standard error while the block runs.

    The bar appears after one second, and only if standard error is a terminal.

    Args:
        description: str, name of the operation, such as "Tokenizing".
        total: float, total number of units; None if unknown.
        unit: str, name of the units in the plural, such as "documents". "bytes" are shown as MB.
        show: bool, whether to show the bar.

    Yields:
        A function to call with the number of units done since the last call and, optionally, a note, such as the loss,
        to show after the bar until the next call.

    Example:

    ```python
    from lmzoo.common.progress import progress_bar

    with progress_bar("Reading", total=3, unit="files") as advance:
        for _ in range(3):
            advance(1)
    ```
    """
    console = Console(stderr=True)
    if not (show and console.is_terminal):
        yield lambda count, note="": None
        return
    time_column = TimeElapsedColumn() if total is None else TimeRemainingColumn()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), _CountColumn(unit), time_column)
    progress = Progress(*columns, TextColumn("{task.fields[note]}", markup=False), console=console)
    task_id = progress.add_task(description, total=total, note="")

    def advance(count: float, note: str = "") -> None:
        progress.update(task_id, advance=count, note=note)
        if not progress.live.is_started and (progress.tasks[0].elapsed or 0.0) > _DELAY_SECONDS:
            progress.start()

    try:
        yield advance
    finally:
        if progress.live.is_started:
            progress.stop()


@contextmanager
def progress_over(
    items: Iterable[_Item], description: str, unit: str = "items", show: bool = True
) -> Iterator[Iterator[_Item]]:
    """Yield an iterator over `items` that advances a progress bar; see `progress_bar` for the other arguments."""
    with progress_bar(description, len(items) if isinstance(items, Sized) else None, unit, show) as advance:

        def iterate() -> Iterator[_Item]:
            for item in items:
                yield item
                advance(1)

        yield iterate()


class _CountColumn(ProgressColumn):
    """Column with the number of units done, the total and the speed: "1,200 of 5,000 documents, 310 documents/s"."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.scale, self.digits, self.unit = (1e-6, 1, "MB") if unit == "bytes" else (1.0, 0, unit)

    def render(self, task: Task) -> Text:
        """Return the text of the column for one bar."""
        completed_text, total_text, speed_text = (
            None if amount is None else f"{amount * self.scale:,.{self.digits}f}"
            for amount in (task.completed, task.total, task.finished_speed or task.speed)
        )
        parts = [completed_text, *(["of", total_text] if total_text else []), self.unit]
        return Text(" ".join(filter(None, parts)) + (f", {speed_text} {self.unit}/s" if speed_text else ""))
