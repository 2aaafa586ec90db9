"""Callback that reports the speed of training and the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import keras
from rich.console import Console

from lmzoo.common.progress import progress_bar

_UPDATE_SECONDS = 0.5  # between updates of the bar: on JAX, an update waits for the step and costs milliseconds


class Throughput(keras.callbacks.Callback):
    """Callback that shows steps, loss, tokens per second and the remaining time.

    Terminals get a progress bar, other outputs one line per epoch. If the model has the metric `perplexity`, the
    perplexity is shown instead of the loss, which for language models is a sum over a sequence. `tokens_per_second` is
    added to the logs of each epoch, for later callbacks.

    Args:
        tokens: float, mean number of tokens per step.
        steps: int, total number of training steps.
        verbose: bool, whether to show anything.
        say: function to call with each line of output, where no progress bar is shown.

    Example:

    ```python
    from lmzoo.training.throughput import Throughput

    callback = Throughput(tokens=32 * 128, steps=10_000)
    ```
    """

    def __init__(self, tokens: float, steps: int, verbose: bool = True, say: Callable[[str], None] = print) -> None:
        super().__init__()
        self.tokens = tokens
        self.steps = steps
        self.verbose = verbose
        self.say = say
        self._bar = ExitStack()
        self._has_bar = False
        self._bar_steps = 0  # number of steps that the bar shows
        self._updated_at = 0.0  # seconds
        self._epoch = (0.0, 0)  # start of the epoch: seconds, and number of steps done

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Show the progress bar, starting at the number of steps already done."""
        self._advance = self._bar.enter_context(progress_bar("Training", self.steps, "steps", self.verbose))
        self._has_bar = self.verbose and Console(stderr=True).is_terminal
        self._bar_steps = 0
        self._update_bar()

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Start measuring the speed of the epoch."""
        self._epoch = (time.perf_counter(), self._count_steps())

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Update the progress bar, at most every half second."""
        if self._has_bar and time.perf_counter() - self._updated_at >= _UPDATE_SECONDS:
            self._update_bar(self._describe(logs))

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Add `tokens_per_second` to the logs, and report the progress."""
        if logs is not None:
            logs["tokens_per_second"] = self._compute_tokens_per_second()
        if self._has_bar:
            self._update_bar(self._describe(logs))
        elif self.verbose:
            seconds_left = (
                (self.steps - self._count_steps()) * self.tokens / max(self._compute_tokens_per_second(), 1e-9)
            )
            self.say(
                f"step {self._count_steps():,} of {self.steps:,}: {self._describe(logs)}, "
                f"{seconds_left / 60:.0f} minutes left"
            )

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Remove the progress bar."""
        self._bar.close()

    def _update_bar(self, note: str = "") -> None:
        steps_done = self._count_steps()
        self._advance(steps_done - self._bar_steps, note)
        self._bar_steps = steps_done
        self._updated_at = time.perf_counter()

    def _count_steps(self) -> int:
        return int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))

    def _compute_tokens_per_second(self) -> float:
        started_at, steps_before = self._epoch
        return self.tokens * (self._count_steps() - steps_before) / max(time.perf_counter() - started_at, 1e-9)

    def _describe(self, logs: dict[str, float] | None) -> str:
        name = "perplexity" if "perplexity" in (logs or {}) else "loss"
        loss = f"{name} {float(logs[name]):.3f}, " if logs and name in logs else ""
        return f"{loss}{self._compute_tokens_per_second():,.0f} tokens/s"
