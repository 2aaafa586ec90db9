"""How fast a training goes, and how long it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Throughput(keras.callbacks.Callback):
    """Shows step, loss, tokens a second and the time that is left; on a terminal live, else a line an epoch.

    Of a language model's streams it shows the perplexity: the loss is a sum over the words of a step.

    It adds `tokens_per_second` to the logs of an epoch, for the callbacks that come after it.

    Args:
        tokens: float, tokens of a step on average.
        steps: int, steps of the whole training.
        verbose: whether to show anything.
        say: takes a line.

    Example:

    ```python
    from lmzoo.training.throughput import Throughput

    callback = Throughput(tokens=32 * 128, steps=10_000)
    ```
    """

    def __init__(self, tokens: float, steps: int, verbose: bool = True, say: Callable[[str], None] = print) -> None:
        super().__init__()
        self.tokens, self.steps, self.say = tokens, steps, say
        self._bar: Progress | None = None
        if verbose and Console().is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[found]}"), TimeRemainingColumn())
            self._bar = Progress(TextColumn("steps"), *columns)
        self._verbose = verbose
        self._shown = ""
        self._begun = (0.0, 0)

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins the bar at the steps that are done."""
        if self._bar is not None:
            self._bar.start()
            self._row = self._bar.add_task("", total=self.steps, completed=self._done(), found="")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins to measure."""
        self._begun = (time.perf_counter(), self._done())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Moves the bar."""
        logs = logs or {}
        name = "perplexity" if "perplexity" in logs else "loss"
        self._shown = f"{name} {float(logs[name]):.3f}, " if name in logs else ""
        if self._bar is not None:
            self._bar.update(self._row, completed=self._done(), found=self._found())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the speed to the logs."""
        if logs is not None:
            logs["tokens_per_second"] = self._speed()
        if self._verbose and self._bar is None:
            left = (self.steps - self._done()) * self.tokens / max(self._speed(), 1e-9)
            self.say(f"step {self._done():,} of {self.steps:,}: {self._found()}, {left / 60:.0f} minutes left")

    def on_train_end(self, logs: Any = None) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.stop()

    def _done(self) -> int:
        return int(self.model.optimizer.iterations)

    def _speed(self) -> float:
        begun, done = self._begun
        return self.tokens * (self._done() - done) / max(time.perf_counter() - begun, 1e-9)

    def _found(self) -> str:
        return f"{self._shown}{self._speed():,.0f} tokens/s"
