"""The progress bar of everything that takes more than a second; Keras shows its own during `fit` and `predict`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

_DELAY = 1.0  # seconds: what is done sooner needs no bar


@contextmanager
def progress_bar(
    description: str, total: float | None = None, unit: str = "", shown: bool = True
) -> Iterator[Callable[[float], None]]:
    """Shows on standard error how far the work inside of a `with` block has come.

    Nothing is shown during the first second, nor where standard error is no terminal.

    Args:
        description: what is being done, such as "Tokenizing".
        total: how many units there are; None if that is not known.
        unit: what is counted, in the plural, such as "documents". "bytes" are shown as MB.
        shown: False shows nothing.

    Yields:
        A function that is called with the number of units done since the last call.

    Example:

    ```python
    from lmzoo.progress import progress_bar

    with progress_bar("Reading", total=3, unit="files") as advance:
        for _ in range(3):
            advance(1)
    ```
    """
    scale, name = (1e-6, "MB") if unit == "bytes" else (1.0, unit)
    known = total is not None
    counts = "{task.completed:,.0f}" + (" of {task.total:,.0f} " if known else " ") + name
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), TextColumn(counts)]
    columns += [TaskProgressColumn(), TimeRemainingColumn()] if known else []
    progress = Progress(*columns, console=Console(stderr=True))
    row = progress.add_task(description, total=total * scale if known else None)
    start, started = time.monotonic(), False

    def advance(count: float) -> None:
        nonlocal started
        progress.advance(row, count * scale)
        if shown and not started and time.monotonic() - start > _DELAY and progress.console.is_terminal:
            started = True
            progress.start()

    try:
        yield advance
    finally:
        if started:
            progress.stop()
