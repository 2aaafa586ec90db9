"""The speed of training, and the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import keras
from rich.console import Console

from lmzoo.common.progress import progress_bar

_INTERVAL = 0.5  # seconds between two moves of the bar: on JAX, each waits for the step and costs milliseconds


class Throughput(keras.callbacks.Callback):
    """Steps, loss, tokens per second and the remaining time: in a progress bar, or one line per epoch.

    The bar is for terminals, the lines for other outputs. If the model has the metric `perplexity`, it replaces the
    loss, which for language models is a sum over a sequence. `tokens_per_second` is added to the logs of each epoch,
    for the callbacks after this one.

    Args:
        tokens: float, tokens per step on average.
        steps: int, steps of the whole training.
        verbose: whether to show anything.
        say: called with each line.

    Example:

    ```python
    from lmzoo.training.throughput import Throughput

    callback = Throughput(tokens=32 * 128, steps=10_000)
    ```
    """

    def __init__(self, tokens: float, steps: int, verbose: bool = True, say: Callable[[str], None] = print) -> None:
        super().__init__()
        self.tokens, self.steps, self.verbose, self.say = tokens, steps, verbose, say
        self._bar = ExitStack()
        self._visible = False  # whether there is a bar
        self._shown, self._moved = 0, 0.0  # number of steps that the bar shows, and since when
        self._epoch = (0.0, 0)  # when it began, and at which step

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Start the bar at the number of steps already done."""
        self._advance = self._bar.enter_context(progress_bar("Training", self.steps, "steps", self.verbose))
        self._visible = self.verbose and Console(stderr=True).is_terminal
        self._shown = 0
        self._move()

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Start to measure the speed."""
        self._epoch = (time.perf_counter(), self._done())

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Move the bar, if it is time."""
        if self._visible and time.perf_counter() - self._moved >= _INTERVAL:
            self._move(self._summary(logs))

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Add the speed to the logs."""
        if logs is not None:
            logs["tokens_per_second"] = self._speed()
        if self._visible:
            self._move(self._summary(logs))
        elif self.verbose:
            left = (self.steps - self._done()) * self.tokens / max(self._speed(), 1e-9)
            self.say(f"step {self._done():,} of {self.steps:,}: {self._summary(logs)}, {left / 60:.0f} minutes left")

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """End the bar."""
        self._bar.close()

    def _move(self, note: str = "") -> None:
        done = self._done()
        self._advance(done - self._shown, note)
        self._shown, self._moved = done, time.perf_counter()

    def _done(self) -> int:
        return int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))

    def _speed(self) -> float:
        begun, done = self._epoch
        return self.tokens * (self._done() - done) / max(time.perf_counter() - begun, 1e-9)

    def _summary(self, logs: dict[str, float] | None) -> str:
        name = "perplexity" if "perplexity" in (logs or {}) else "loss"
        shown = f"{name} {float(logs[name]):.3f}, " if logs and name in logs else ""
        return f"{shown}{self._speed():,.0f} tokens/s"
