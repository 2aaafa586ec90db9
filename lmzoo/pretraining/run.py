"""A run of pre-training: its files, and its calls of `fit`."""

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

from lmzoo.files.urls import inside
from lmzoo.parallel.processes import process_index
from lmzoo.pretraining.recipe import Recipe
from lmzoo.tasks import Task
from lmzoo.text.validate_text import collect_warnings
from lmzoo.training import ResumableCheckpoint
from lmzoo.training.run_state import RunStates
from lmzoo.training.throughput import Throughput

ROUND = 200  # batches between two lines of the log, and at most between two saved states
_STATES = "states"
MINUTES = 5.0  # another state is saved when the last one is older


class Facts(TypedDict):
    """Results of a training, for the model card.

    `scores` are those on all held-out text, for a mixture the mean by the shares of its texts, and `of_texts` those on
    each of its texts. `text` and `held_out` describe the text to train and to evaluate on. `tokens` counts the tokens
    seen, `seconds` is the time of the last start of the run. `fixed` replaces fields of the recipe, or
    hides them if None.
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
    """What all parts of a run share.

    Attributes:
        recipe: how to train.
        work: folder for intermediate results.
        states: folder, or URL, of the folders with the saved states.
        callbacks: additional callbacks for `fit`.
        verbose: whether to show progress.
        say: called with a line of text at each stage.
    """

    recipe: Recipe
    work: Path
    states: str | Path
    callbacks: list[keras.callbacks.Callback]
    verbose: bool
    say: Callable[[str], None]

    def saved(self, last: int | None = None) -> RunStates:
        """Return the saved states; those of the decay of a run of `last` batches, if given."""
        return RunStates(inside(self.states, _STATES if last is None else f"{_STATES}_to_{last}"))

    @contextmanager
    def warnings_said(self) -> Iterator[None]:
        """Pass the text warnings of a `with` block to `say` instead of issuing them."""
        with collect_warnings() as messages:
            yield
        for message in messages:
            self.say(message)

    def batches(self, tokens: float, batch_tokens: float) -> int:
        """Return number of batches of `batch_tokens` tokens each that hold `tokens`: whole steps, at least one."""
        accumulate = self.recipe.accumulate
        return accumulate * max(1, round(tokens / batch_tokens / accumulate))

    def fit(
        self, model: Task, x: Any, batches: int, batch_tokens: float, decay: int | None = None, **arguments: Any
    ) -> float:
        """Train for a number of batches, or for the rest of them if the run was stopped before; return the seconds.

        `arguments` are others of `fit`. What follows the first `decay` batches depends on the number of batches: the
        state before it is kept, from which a run with more of them continues.

        Raises:
            InterruptedError: after SIGTERM.
            KeyboardInterrupt: after Ctrl-C.
        """
        begun = time.perf_counter()
        resume = _Ending(self, batches, decay)
        accumulate = self.recipe.accumulate
        shown = Throughput(accumulate * batch_tokens, batches // accumulate, self.verbose, self.say)
        self.say("compiling the first step")
        log = keras.callbacks.CSVLogger(self.work / "log.csv" if process_index() == 0 else os.devnull, append=True)
        try:
            model.fit(
                x,
                epochs=math.ceil(batches / ROUND),
                steps_per_epoch=ROUND,
                seed=self.recipe.seed,
                verbose=0,
                callbacks=[shown, log, *self.callbacks, resume],
                **arguments,
            )
        finally:
            for callback in (shown, log):
                callback.on_train_end()  # closes the bar and the file, also after an error
        return time.perf_counter() - begun


class _Ending(ResumableCheckpoint):
    """A checkpoint that ends the training after `last` batches in all, even in the middle of an epoch.

    The states of the batches after the first `decay` are in a folder for this number of batches.
    """

    def __init__(self, run: Run, last: int, decay: int | None) -> None:
        super().__init__(run.saved().folder, minutes=MINUTES)
        self.run, self.last, self.decay = run, last, decay
        self._last_states = self._states if decay is None else run.saved(last)

    def restore(self, model: keras.Model, data: object, epochs: int, steps: int, done: int) -> tuple[int, bool]:
        """See `ResumableCheckpoint`; a finished run has no epochs left."""
        if self._last_states.names():
            self._states = self._last_states
        done, same = super().restore(model, data, epochs, steps, done)
        if done:
            self.run.say(f"continuing after step {done // self.run.recipe.accumulate:,}")
        return (epochs * steps if done >= self.last else done), same

    def end_by_signal(self, number: int) -> None:
        """See `ResumableCheckpoint`; every signal is an error, so that nothing is evaluated."""
        done = self._done // self.run.recipe.accumulate
        error = KeyboardInterrupt if number == signal.SIGINT else InterruptedError
        raise error(f"Stopped after step {done:,}. The same command continues from {self.run.work}.")

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """See `ResumableCheckpoint`; saves after the last batch, and before the decay."""
        super().on_train_batch_end(batch, logs)
        ends = self._done == self.last
        if self._done % self._steps and (ends or self._done == self.decay):
            self._save()
        if ends:
            self.model.stop_training = True

    def _save(self) -> None:
        if self.decay is not None and self._done > self.decay:
            self._states = self._last_states
        super()._save()
