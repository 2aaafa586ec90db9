"""A run: where its files are, and how `fit` is called."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from lmzoo.pretraining.recipe import Recipe
from lmzoo.tasks import Task
from lmzoo.text.validate_text import collect_warnings
from lmzoo.training import ResumableCheckpoint
from lmzoo.training.throughput import Throughput

ROUND = 200  # batches between two states, and two lines of the log


@dataclass(frozen=True)
class Run:
    """What all parts of a run share.

    Attributes:
        recipe: how to train.
        work: folder of all that is made on the way.
        callbacks: for `fit`.
        verbose: whether to show progress.
        say: takes a line at each step.
    """

    recipe: Recipe
    work: Path
    callbacks: list[keras.callbacks.Callback]
    verbose: bool
    say: Callable[[str], None]

    @contextmanager
    def said_warnings(self) -> Iterator[None]:
        """Says the text warnings of a `with` block instead of issuing them."""
        with collect_warnings() as messages:
            yield
        for message in messages:
            self.say(message)

    def batches(self, tokens: float, of_a_batch: float) -> int:
        """Batches that it takes to see some tokens: those of whole steps, at least one.

        Args:
            tokens: how many.
            of_a_batch: tokens of a batch.
        """
        gathered = self.recipe.accumulate
        return gathered * max(1, round(tokens / of_a_batch / gathered))

    def fit(self, model: Task, x: Any, batches: int, states: str, shown: Throughput, **arguments: Any) -> None:
        """Trains for some batches, or for what is left of them.

        Args:
            model: compiled.
            x: what `fit` takes.
            batches: int.
            states: name of the folder in `work` that holds the states.
            shown: the callback that shows progress.
            **arguments: of `fit`.

        Raises:
            InterruptedError: if it was told to stop.
        """
        gathered = self.recipe.accumulate
        resume = _Ending(
            self.work / states, batches, lambda done: self.say(f"going on after step {done // gathered:,}")
        )
        a_round = min(ROUND, batches)
        log = keras.callbacks.CSVLogger(self.work / "log.csv", append=True)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Stopped by SIGTERM")  # what is raised below says more
                model.fit(
                    x,
                    epochs=math.ceil(batches / a_round),
                    steps_per_epoch=a_round,
                    seed=self.recipe.seed,
                    verbose=0,
                    callbacks=[shown, log, *self.callbacks, resume],
                    **arguments,
                )
        finally:
            log.on_train_end()  # closes the file
        if resume.stopped:
            done = resume.done // gathered
            raise InterruptedError(f"Stopped after step {done:,}. The same command goes on from {self.work}.")


class _Ending(ResumableCheckpoint):
    """A checkpoint that ends the training at a batch, in the middle of an epoch too.

    Args:
        folder: where the states go.
        last: int, how many batches there are.
        going_on: called where a run goes on, with the batches that are done.
    """

    def __init__(self, folder: Path, last: int, going_on: Callable[[int], None]) -> None:
        super().__init__(folder)
        self.last, self.going_on = last, going_on

    @property
    def done(self) -> int:
        """Batches that are done."""
        return self._done

    def restore(self, model: keras.Model, data: Any, epochs: int, steps: int, done: int) -> tuple[int, bool]:
        """See `ResumableCheckpoint`; a run that is at its end has no epoch left."""
        done, same = super().restore(model, data, epochs, steps, done)
        if done:
            self.going_on(done)
        return (epochs * steps if done >= self.last else done), same

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `ResumableCheckpoint`; saves after the last batch."""
        super().on_train_batch_end(batch, logs)
        if self._done == self.last and self._done % self._steps:
            self._save()
            self.model.stop_training = True
