"""A run: where its files are, the documents that it reads, and how `fit` is called."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from lmzoo.pretraining.recipe import Recipe
from lmzoo.tasks import Task
from lmzoo.training import ResumableCheckpoint, read_documents
from lmzoo.training.throughput import Throughput

ROUND = 200  # steps between two states, and two lines of the log
_HELD_OUT = 100  # one document of so many is evaluated on


class Documents:
    """The documents of a corpus, or those that are held out of it; they can be gone through again and again.

    Args:
        corpus: files, folders or patterns; see `lmzoo.training.read_documents`.
        validation: those to hold out, or None for a hundredth of the corpus' documents.
        held: whether to read the ones that are held out.
    """

    def __init__(self, corpus: Any, validation: Any, held: bool) -> None:
        self.paths = validation if held and validation is not None else corpus
        self.whole = validation is not None
        self.held = held

    def __iter__(self) -> Iterator[list[str]]:
        """Documents as lists of sentences."""
        for i, document in enumerate(read_documents(self.paths)):
            if self.whole or (i % _HELD_OUT == _HELD_OUT - 1) == self.held:
                yield document


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

    def whole_rounds(self, steps: float) -> int:
        """Steps in whole rounds, or fewer than one.

        Args:
            steps: about how many.
        """
        return max(1, round(steps)) if steps < ROUND else ROUND * round(steps / ROUND)

    def fit(self, model: Task, x: Any, steps: int, states: str, shown: Throughput, **arguments: Any) -> None:
        """Trains for some steps, or for what is left of them.

        Args:
            model: compiled.
            x: what `fit` takes.
            steps: int.
            states: name of the folder in `work` that holds the states.
            shown: the callback that shows progress.
            **arguments: of `fit`.

        Raises:
            InterruptedError: if it was told to stop.
        """
        resume = ResumableCheckpoint(self.work / states)
        a_round = min(ROUND, steps)
        log = keras.callbacks.CSVLogger(self.work / "log.csv", append=True)
        try:
            model.fit(
                x,
                epochs=math.ceil(steps / a_round),
                steps_per_epoch=a_round,
                seed=self.recipe.seed,
                verbose=0,
                callbacks=[shown, log, *self.callbacks, resume],
                **arguments,
            )
        finally:
            log.on_train_end()  # closes the file
        if resume.stopped:
            raise InterruptedError(f"Stopped. The same command goes on from {self.work}.")
