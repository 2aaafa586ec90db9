"""A run of pre-training: its files, and its calls of `fit`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import keras

from lmzoo.pretraining.recipe import Recipe
from lmzoo.tasks import Task
from lmzoo.text.validate_text import collect_warnings
from lmzoo.training import ResumableCheckpoint
from lmzoo.training.throughput import Throughput

ROUND = 200  # batches between two saved states, and between two lines of the log


class Facts(TypedDict):
    """Results of a training, for the model card.

    `text` and `held_out` describe the text to train and to evaluate on. `tokens` counts the tokens seen, `seconds` is
    the time of the last start of the run. `fixed` replaces fields of the recipe, or hides them if None.
    """

    scores: dict[str, float]
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
        callbacks: additional callbacks for `fit`.
        verbose: whether to show progress.
        say: called with a line of text at each stage.
    """

    recipe: Recipe
    work: Path
    callbacks: list[keras.callbacks.Callback]
    verbose: bool
    say: Callable[[str], None]

    @contextmanager
    def warnings_said(self) -> Iterator[None]:
        """Passes the text warnings of a `with` block to `say` instead of issuing them."""
        with collect_warnings() as messages:
            yield
        for message in messages:
            self.say(message)

    def batches(self, tokens: float, batch_tokens: float) -> int:
        """Number of batches of `batch_tokens` tokens each that hold `tokens`: whole steps, at least one."""
        accumulate = self.recipe.accumulate
        return accumulate * max(1, round(tokens / batch_tokens / accumulate))

    def fit(self, model: Task, x: Any, batches: int, shown: Throughput, **arguments: Any) -> None:
        """Trains for a number of batches, or for the rest of them if the run was stopped before.

        Args:
            model: a compiled model.
            x: what `fit` takes.
            batches: int, number of batches.
            shown: the callback that shows progress.
            **arguments: other arguments of `fit`.

        Raises:
            InterruptedError: after SIGTERM.
        """
        accumulate = self.recipe.accumulate
        resume = _Ending(
            self.work / "states", batches, lambda done: self.say(f"continuing after step {done // accumulate:,}")
        )
        a_round = min(ROUND, batches)
        log = keras.callbacks.CSVLogger(self.work / "log.csv", append=True)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Stopped by SIGTERM")  # the error below says more
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
            done = resume.done // accumulate
            raise InterruptedError(f"Stopped after step {done:,}. The same command continues from {self.work}.")


class _Ending(ResumableCheckpoint):
    """A checkpoint that ends the training after a number of batches, even in the middle of an epoch.

    Args:
        folder: where states are saved.
        last: int, total number of batches.
        resumed: called with the number of batches done when a run is resumed.
    """

    def __init__(self, folder: Path, last: int, resumed: Callable[[int], None]) -> None:
        super().__init__(folder)
        self.last, self.resumed = last, resumed

    @property
    def done(self) -> int:
        """Number of batches done."""
        return self._done

    def restore(self, model: keras.Model, data: object, epochs: int, steps: int, done: int) -> tuple[int, bool]:
        """See `ResumableCheckpoint`; a finished run has no epochs left."""
        done, same = super().restore(model, data, epochs, steps, done)
        if done:
            self.resumed(done)
        return (epochs * steps if done >= self.last else done), same

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """See `ResumableCheckpoint`; saves after the last batch."""
        super().on_train_batch_end(batch, logs)
        if self._done == self.last and self._done % self._steps:
            self._save()
            self.model.stop_training = True
