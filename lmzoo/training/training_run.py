"""A run of training: where it begins, its learning rates, and its callbacks in the order of their calls."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import keras

from lmzoo.parallel.processes import check_same, several_processes
from lmzoo.text.batching import Batches
from lmzoo.text.buffered_batches import BufferedBatches
from lmzoo.training.divergence import StopOnDivergence
from lmzoo.training.optimizers import AdamW
from lmzoo.training.resuming import ResumableCheckpoint

_WARMUP_OF_UNKNOWN_LENGTH = 100  # steps


@dataclass(frozen=True)
class TrainingRun:
    """Where the `fit` of a task begins, and what Keras calls meanwhile.

    Attributes:
        first_step: step at which the batches begin, which then follow one another through all epochs; None if each
            epoch is a pass over the data.
        initial_epoch: epoch to begin with.
        steps_per_epoch: number of batches of an epoch; None for a whole pass.
        callbacks: in the order in which Keras calls them.
        checkpoint: the one of them that saves the state of the run, or None.
    """

    first_step: int | None
    initial_epoch: int
    steps_per_epoch: int | None
    callbacks: list[keras.callbacks.Callback]
    checkpoint: ResumableCheckpoint | None = None

    @classmethod
    def begin(
        cls,
        model: Any,
        data: Any,
        epochs: int,
        steps_per_epoch: int | None,
        initial_epoch: int,
        callbacks: Sequence[keras.callbacks.Callback],
    ) -> Self:
        """Build the optimizer, restore the state of an earlier run if there is one, and begin the schedule.

        Args:
            model: a task, compiled.
            data: `lmzoo.text.batching.Batches`, or what else Keras draws batches from.
            epochs: epoch to stop at.
            steps_per_epoch: number of batches of an epoch; None to count those in `data`.
            initial_epoch: epoch to begin with, unless an earlier run got further.
            callbacks: those of the user; a `ResumableCheckpoint` among them makes the run one that can be resumed.

        Raises:
            ProcessesError: if the other processes that train the model have other data.
            ValueError: if the run is to be resumable and its number of batches is unknown; see
                `ResumableCheckpoint.restore`.
        """
        steps = steps_per_epoch or count_batches(data)
        if several_processes():
            check_same(steps=steps, epochs=epochs, **(data.identity() if isinstance(data, Batches) else {}))
        model.build_optimizer()
        checkpoint = find_checkpoint(callbacks)
        first_step, done, schedule_restored = None, (steps or 0) * initial_epoch, False
        if checkpoint is not None:
            if steps is None:
                raise ValueError(
                    "A run that can be resumed needs `steps_per_epoch`, since its data has no known length."
                )
            done, schedule_restored = checkpoint.restore(model, data, epochs, steps, done)
            first_step, initial_epoch, steps_per_epoch = done, done // steps, steps
        elif isinstance(data, BufferedBatches):
            first_step, steps_per_epoch = done, steps
        if not schedule_restored:
            _start_schedule(model.optimizer, steps, epochs, done, callbacks)
        ordered = _in_order(callbacks, checkpoint, data if first_step is None else None)
        return cls(first_step, initial_epoch, steps_per_epoch, ordered, checkpoint)

    def stoppable(self) -> contextlib.AbstractContextManager[None]:
        """Stop at SIGTERM and Ctrl-C after a step whose state is saved, if the run can be resumed."""
        return contextlib.nullcontext() if self.checkpoint is None else self.checkpoint.listening()


def find_checkpoint(callbacks: Sequence[keras.callbacks.Callback]) -> ResumableCheckpoint | None:
    """Return the callback that saves the state of the run, or None."""
    return next((callback for callback in callbacks if isinstance(callback, ResumableCheckpoint)), None)


def count_batches(data: Any) -> int | None:
    """Return the number of batches of an epoch over what Keras is to be given, or None if it is unknown."""
    if isinstance(data, keras.utils.PyDataset):
        return data.num_batches
    if hasattr(data, "cardinality"):  # of a `tf.data.Dataset`; negative if unknown or infinite
        count = int(data.cardinality())
        return count if count > 0 else None
    return None


def _start_schedule(
    optimizer: Any, steps: int | None, epochs: int, done: int, callbacks: Sequence[keras.callbacks.Callback]
) -> None:
    """Fit the default schedule to the coming training, of which some steps may be done, from its iteration on."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # Keras wraps it to scale the loss in float16
    if not isinstance(optimizer, AdamW):
        return
    scheduled = any(isinstance(callback, keras.callbacks.LearningRateScheduler) for callback in callbacks)
    if scheduled or not hasattr(optimizer.learning_rate, "assign"):
        optimizer.start_schedule()  # the callback, or a Keras schedule, sets the rate
        return
    if steps is None:
        optimizer.start_schedule(warmup_steps=_WARMUP_OF_UNKNOWN_LENGTH)
        return
    batches_per_update = optimizer.gradient_accumulation_steps or 1
    total = steps * epochs // batches_per_update
    decays = not any(isinstance(callback, keras.callbacks.ReduceLROnPlateau) for callback in callbacks)
    optimizer.start_schedule(math.ceil(total / 10), total if decays else 0, done // batches_per_update)


def _in_order(
    callbacks: Sequence[keras.callbacks.Callback], checkpoint: ResumableCheckpoint | None, passes: Any
) -> list[keras.callbacks.Callback]:
    """Return the callbacks with those of the run; `passes` are the data if each epoch is a pass over them."""
    ordered = [callback for callback in callbacks if callback is not checkpoint]
    if checkpoint is not None:  # it saves what all others have done
        ordered = [keras.callbacks.LambdaCallback(on_epoch_end=checkpoint.reopen), *ordered, checkpoint]
    elif isinstance(passes, Batches):
        ordered = [*ordered, keras.callbacks.LambdaCallback(on_epoch_begin=passes.begin_epoch)]
    if not any(isinstance(callback, keras.callbacks.TerminateOnNaN) for callback in ordered):
        ordered = [StopOnDivergence(), *ordered]  # before those that save
    return ordered
