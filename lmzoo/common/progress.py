"""The progress bar of everything that may take more than a second; Keras shows its own in `fit` and `predict`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

_DELAY = 1.0  # seconds: what is done sooner needs no bar

_Item = TypeVar("_Item")


class Advance(Protocol):
    """What `progress_bar` yields: it is called with the units done since the last call, and perhaps a note."""

    def __call__(self, count: float, note: str = "") -> None:
        """Move the bar."""


@contextmanager
def progress_bar(description: str, total: float | None = None, unit: str = "", shown: bool = True) -> Iterator[Advance]:
    """Show on standard error how far the work in a `with` block has come.

    Nothing is shown in the first second, nor where standard error is not a terminal.

    Args:
        description: what is being done, such as "Tokenizing".
        total: how many units there are; None if that is not known.
        unit: what is counted, in the plural, such as "documents". "bytes" are shown as MB.
        shown: False shows nothing.

    Yields:
        A function to call with the number of units done since the last call. Its second argument is a note that stands
        behind the bar until the next call, such as the loss.

    Example:

    ```python
    from lmzoo.common.progress import progress_bar

    with progress_bar("Reading", total=3, unit="files") as advance:
        for _ in range(3):
            advance(1)
    ```
    """
    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield lambda count, note="": None
        return
    time = TimeElapsedColumn() if total is None else TimeRemainingColumn()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), _Counts(unit), time)
    progress = Progress(*columns, TextColumn("{task.fields[note]}", markup=False), console=console)
    row = progress.add_task(description, total=total, note="")

    def advance(count: float, note: str = "") -> None:
        progress.update(row, advance=count, note=note)
        if not progress.live.is_started and (progress.tasks[0].elapsed or 0.0) > _DELAY:
            progress.start()

    try:
        yield advance
    finally:
        if progress.live.is_started:
            progress.stop()


@contextmanager
def progress_over(
    items: Iterable[_Item], description: str, unit: str = "items", shown: bool = True
) -> Iterator[Iterator[_Item]]:
    """Yield an iterator over items, and show how many a `with` block has iterated over; see `progress_bar`."""
    with progress_bar(description, len(items) if isinstance(items, Sized) else None, unit, shown) as advance:

        def counted() -> Iterator[_Item]:
            for item in items:
                yield item
                advance(1)

        yield counted()


class _Counts(ProgressColumn):
    """How many units are done, of how many, and how many a second: "1,200 of 5,000 documents, 310 documents/s"."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.scale, self.digits, self.unit = (1e-6, 1, "MB") if unit == "bytes" else (1.0, 0, unit)

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        done, total, speed = (
            None if number is None else f"{number * self.scale:,.{self.digits}f}"
            for number in (task.completed, task.total, task.finished_speed or task.speed)
        )
        parts = [done, *(["of", total] if total else []), self.unit]
        return Text(" ".join(filter(None, parts)) + (f", {speed} {self.unit}/s" if speed else ""))
