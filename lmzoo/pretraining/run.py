"""Settings, files and training of a pre-training run."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import keras

from lmzoo.files.urls import join_path
from lmzoo.parallel.processes import process_index
from lmzoo.pretraining.recipe import Recipe
from lmzoo.tasks import Task
from lmzoo.text.validate_text import collect_warnings
from lmzoo.training import ResumableCheckpoint
from lmzoo.training.run_state import RunStates
from lmzoo.training.throughput import Throughput

ROUND = 200  # batches per epoch, between lines of the log and, at most, between saved states
_STATES = "states"
MINUTES = 5.0  # maximum time between saved states


class Facts(TypedDict):
    """Results of a training run, for the model card.

    Attributes:
        scores: scores on the held-out text by name; for a mixture, weighted means over its texts.
        of_texts: for a mixture, dict from the name of each text to its scores by name; otherwise empty.
        text: str, description of the text to train on.
        held_out: str, description of the held-out text.
        tokens: float, number of tokens seen in training.
        steps: int, number of optimizer steps.
        seconds: float, training time since the last start of the run.
        fixed: values that replace fields of the recipe on the card; None hides a field.
    """

    scores: dict[str, float]
    of_texts: dict[str, dict[str, float]]
    text: str
    held_out: str
    tokens: float
    steps: int
    seconds: float
    fixed: dict[str, str | None]


@dataclass(frozen=True)
class Run:
    """The settings and folders of a pre-training run.

    Attributes:
        recipe: settings of the training.
        work: folder for intermediate results.
        states: folder, or URL, with the folders of saved states.
        callbacks: additional Keras callbacks of the training.
        verbose: bool, whether to show progress.
        say: function that is called with a line of text at each stage.
    """

    recipe: Recipe
    work: Path
    states: str | Path
    callbacks: list[keras.callbacks.Callback]
    verbose: bool
    say: Callable[[str], None]

    def get_states(self, last: int | None = None) -> RunStates:
        """Return the saved states of the run or, given `last`, of the decay phase that ends after `last` batches."""
        return RunStates(join_path(self.states, _STATES if last is None else f"{_STATES}_to_{last}"))

    @contextmanager
    def redirect_warnings(self) -> Iterator[None]:
        """Pass warnings about texts in the block to `say` instead of issuing them."""
        with collect_warnings() as messages:
            yield
        for message in messages:
            self.say(message)

    def count_batches(self, tokens: float, batch_tokens: float) -> int:
        """Return the number of batches for `tokens` tokens, rounded to whole steps, at least one step.

        Args:
            tokens: float, number of tokens of the training.
            batch_tokens: float, mean number of tokens in a batch.
        """
        accumulate = self.recipe.accumulate
        return accumulate * max(1, round(tokens / batch_tokens / accumulate))

    def fit(
        self, model: Task, x: Any, num_batches: int, batch_tokens: float, decay: int | None = None, **arguments: Any
    ) -> float:
        """Train up to a total number of batches, continuing from saved states, and return the time in seconds.

        Args:
            model: the model to train.
            x: inputs for the model's `fit`.
            num_batches: int, total number of batches.
            batch_tokens: float, mean number of tokens in a batch.
            decay: int, number of batches before the decay of the learning rate. The state before the decay is kept,
                since a longer run continues from it; None if there is no such decay.
            **arguments: other arguments of `fit`.

        Raises:
            InterruptedError: After SIGTERM.
            KeyboardInterrupt: After Ctrl-C.
        """
        started_at = time.perf_counter()
        checkpoint = _EndingCheckpoint(self, num_batches, decay)
        accumulate = self.recipe.accumulate
        throughput = Throughput(accumulate * batch_tokens, num_batches // accumulate, self.verbose, self.say)
        self.say("compiling the first step")
        csv_logger = keras.callbacks.CSVLogger(
            self.work / "log.csv" if process_index() == 0 else os.devnull, append=True
        )
        try:
            model.fit(
                x,
                epochs=math.ceil(num_batches / ROUND),
                steps_per_epoch=ROUND,
                seed=self.recipe.seed,
                verbose=0,
                callbacks=[throughput, csv_logger, *self.callbacks, checkpoint],
                **arguments,
            )
        finally:
            for callback in (throughput, csv_logger):
                callback.on_train_end()  # closes the progress bar and the file even after an error
        return time.perf_counter() - started_at


class _EndingCheckpoint(ResumableCheckpoint):
    """A checkpoint that ends the training after `last` batches in total, even within an epoch.

    States after the first `decay` batches are stored in a separate folder for this value of `last`.
    """

    def __init__(self, run: Run, last: int, decay: int | None) -> None:
        super().__init__(run.get_states().folder, minutes=MINUTES)
        self.run = run
        self.last = last
        self.decay = decay
        self._last_states = self._states if decay is None else run.get_states(last)

    def restore(self, model: keras.Model, data: object, epochs: int, steps: int, done: int) -> tuple[int, bool]:
        """Restore the newest saved state; if the run has finished, return the end of all epochs as the position."""
        if self._last_states.names():
            self._states = self._last_states
        done, same_schedule = super().restore(model, data, epochs, steps, done)
        if done:
            self.run.say(f"continuing after step {done // self.run.recipe.accumulate:,}")
        return (epochs * steps if done >= self.last else done), same_schedule

    def end_by_signal(self, number: int) -> None:
        """Raise an error for every signal, so that the model is not evaluated.

        Raises:
            InterruptedError: After SIGTERM.
            KeyboardInterrupt: After SIGINT.
        """
        steps = self._done // self.run.recipe.accumulate
        error_class = KeyboardInterrupt if number == signal.SIGINT else InterruptedError
        raise error_class(f"Stopped after step {steps:,}. The same command continues from {self.run.work}.")

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Count the step, also save the state before the decay and after the last batch, and then end the training."""
        super().on_train_batch_end(batch, logs)
        is_last = self._done == self.last
        if self._done % self._steps and (is_last or self._done == self.decay):
            self._save()
        if is_last:
            self.model.stop_training = True

    def _save(self) -> None:
        if self.decay is not None and self._done > self.decay:
            self._states = self._last_states
        super()._save()
