"""Setup of a training run: first step, learning-rate schedule and callbacks."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import keras

from lmzoo.common.tensorflow_kernels import warn_if_onednn_is_off
from lmzoo.parallel.processes import check_same, has_several_processes
from lmzoo.text.batching import Batches
from lmzoo.text.buffered_batches import BufferedBatches
from lmzoo.training.divergence import StopOnDivergence
from lmzoo.training.layer_order import layers_of
from lmzoo.training.optimizers import AdamW
from lmzoo.training.resuming import ResumableCheckpoint

_DEFAULT_WARMUP_STEPS = 100  # for training of unknown length


@dataclass(frozen=True)
class TrainingRun:
    """Start position and callbacks of a task's `fit`.

    Attributes:
        model: the compiled task.
        first_step: int, step of the first batch in a stream of batches that spans all epochs; None if each epoch is a
            pass over the data.
        initial_epoch: int, index of the first epoch.
        steps_per_epoch: int, number of batches of an epoch; None for a whole pass.
        callbacks: Keras callbacks, in the order of their calls.
        checkpoint: the callback that saves the state of the run, or None.
    """

    model: Any
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
        """Prepare a training run: build the optimizer, restore a saved state and start the schedule.

        Args:
            model: a compiled task, or a model of several tasks.
            data: `lmzoo.text.batching.Batches`, or other data that Keras draws batches from.
            epochs: int, index of the epoch to stop before.
            steps_per_epoch: int, number of batches of an epoch; None to count the batches of `data`.
            initial_epoch: int, index of the first epoch, if no later state is restored.
            callbacks: the user's callbacks; a `ResumableCheckpoint` among them makes the run resumable.

        Raises:
            ProcessesError: If the processes that train the model differ in their data, epochs or steps.
            ValueError: If a resumable run has an unknown number of batches, or its state cannot be restored.
        """
        if keras.backend.backend() == "tensorflow":
            warn_if_onednn_is_off()
        epoch_steps = steps_per_epoch or count_batches(data)
        if has_several_processes():
            check_same(steps=epoch_steps, epochs=epochs, **(data.identity() if isinstance(data, Batches) else {}))
        model.build_optimizer()
        _unfreeze_layers(model)
        checkpoint = find_checkpoint(callbacks)
        first_step = None
        steps_done = (epoch_steps or 0) * initial_epoch
        schedule_restored = False
        if checkpoint is not None:
            if epoch_steps is None:
                raise ValueError(
                    "A run that can be resumed needs `steps_per_epoch`, since its data has no known length."
                )
            steps_done, schedule_restored = checkpoint.restore(model, data, epochs, epoch_steps, steps_done)
            first_step = steps_done
            initial_epoch = steps_done // epoch_steps
            steps_per_epoch = epoch_steps
        elif isinstance(data, BufferedBatches) or (isinstance(data, Batches) and steps_per_epoch is not None):
            first_step = steps_done
            steps_per_epoch = epoch_steps
        if not schedule_restored:
            _start_schedule(model.optimizer, epoch_steps, epochs, steps_done, callbacks)
        if any(isinstance(callback, keras.callbacks.BackupAndRestore) for callback in callbacks):
            if first_step is not None and checkpoint is None:
                _warn_about_backup()
            if isinstance(optimizer := inner_optimizer(model.optimizer), AdamW):
                callbacks = [*callbacks, _continue_schedule(optimizer)]
        ordered_callbacks = _order_callbacks(callbacks, checkpoint, data if first_step is None else None)
        return cls(model, first_step, initial_epoch, steps_per_epoch, ordered_callbacks, checkpoint)

    @contextlib.contextmanager
    def in_progress(self) -> Iterator[None]:
        """Let signals stop a resumable run after the current step, and merge the model's weights at the end."""
        try:
            with contextlib.nullcontext() if self.checkpoint is None else self.checkpoint.listening():
                yield
        finally:  # also after Ctrl-C, since the model may be used and saved then
            self.model.merge_weights()


def find_checkpoint(callbacks: Sequence[keras.callbacks.Callback]) -> ResumableCheckpoint | None:
    """Return the `ResumableCheckpoint` among `callbacks`, or None if there is no such callback."""
    return next((callback for callback in callbacks if isinstance(callback, ResumableCheckpoint)), None)


def count_batches(data: Any) -> int | None:
    """Return the number of batches in one pass over `data`, or None if it is unknown or infinite."""
    if isinstance(data, keras.utils.PyDataset):
        return data.num_batches
    if hasattr(data, "cardinality"):  # of a `tf.data.Dataset`; negative if unknown or infinite
        num_batches = int(data.cardinality())
        return num_batches if num_batches > 0 else None
    return None


def inner_optimizer(optimizer: Any) -> Any:
    """Return the optimizer that updates the weights, without Keras' wrapper that scales the loss in float16."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def prepare_step(model: Any) -> None:
    """Build a task's optimizer for a single step, at a constant learning rate if its schedule has ended at 0."""
    model.build_optimizer()
    optimizer = inner_optimizer(model.optimizer)
    if isinstance(optimizer, AdamW) and optimizer.has_ended:
        optimizer.start_schedule()


def _warn_about_backup() -> None:
    """Warn that a restored run on a stream of batches reads the data from the beginning."""
    warnings.warn(
        "`BackupAndRestore` restores the weights, but not the position in the data: with a stream or "
        "`steps_per_epoch`, a restored run reads the data from the beginning again. Pass "
        "`lmzoo.training.ResumableCheckpoint` instead, which restores both.",
        stacklevel=4,
    )


def _continue_schedule(optimizer: AdamW) -> keras.callbacks.Callback:
    """Return a callback that sets the current schedule again, after `BackupAndRestore` has restored an earlier one.

    The earlier schedule may be for fewer epochs. Its first step is kept, since the restored steps count from it.
    """
    warmup_steps, total_steps, _ = optimizer.schedule_steps

    def set_schedule(logs: dict[str, float] | None = None) -> None:
        *_, elapsed = optimizer.schedule_steps
        optimizer.start_schedule(warmup_steps, total_steps, elapsed)

    return keras.callbacks.LambdaCallback(on_train_begin=set_schedule)


def _unfreeze_layers(model: Any) -> None:
    """Unfreeze layers that a callback of an earlier, interrupted `fit` left frozen."""
    optimizer = inner_optimizer(model.optimizer)
    if isinstance(optimizer, AdamW) and optimizer.freezes_layers:
        optimizer.set_layers(layers_of(model))
        model.forget_compiled()


def _start_schedule(
    optimizer: Any, epoch_steps: int | None, epochs: int, steps_done: int, callbacks: Sequence[keras.callbacks.Callback]
) -> None:
    """Start the schedule of an lmzoo optimizer for a training run that has done `steps_done` steps."""
    optimizer = inner_optimizer(optimizer)
    if not isinstance(optimizer, AdamW):
        return
    if epoch_steps is None:
        start_schedule(optimizer, callbacks, _DEFAULT_WARMUP_STEPS)
        return
    num_updates, updates_done = count_updates(optimizer, epoch_steps * epochs, steps_done)
    start_schedule(optimizer, callbacks, math.ceil(num_updates / 10), num_updates, updates_done)


def start_schedule(
    optimizer: AdamW,
    callbacks: Sequence[keras.callbacks.Callback],
    warmup_steps: int,
    total_steps: int = 0,
    elapsed: int = 0,
) -> None:
    """Start the optimizer's built-in schedule, without the parts that a Keras schedule or a callback replaces.

    Args:
        optimizer: a built optimizer.
        callbacks: the user's callbacks.
        warmup_steps: int, number of steps of the warm-up.
        total_steps: int, number of steps after which the decay ends; 0 for no decay.
        elapsed: int, number of steps of the schedule that are done.
    """
    has_scheduler = any(isinstance(callback, keras.callbacks.LearningRateScheduler) for callback in callbacks)
    if has_scheduler or not hasattr(optimizer.learning_rate, "assign"):
        # The callback or a Keras schedule sets the learning rate.
        optimizer.start_schedule(elapsed=elapsed)
        return
    has_decay = not any(isinstance(callback, keras.callbacks.ReduceLROnPlateau) for callback in callbacks)
    optimizer.start_schedule(warmup_steps, total_steps if has_decay else 0, elapsed)


def count_updates(optimizer: AdamW, num_batches: int, batches_done: int = 0) -> tuple[int, int]:
    """Return the number of updates in a training run of `num_batches` batches, and in its first `batches_done` batches.

    An update may begin with gradients that an earlier run accumulated.
    """
    batches_per_update = optimizer.gradient_accumulation_steps or 1
    # `iterations` counts updates, and the variable of this name batches.
    batch_counter = next(variable for variable in optimizer.variables if variable.name == "iteration")
    batches_in_all_runs = int(keras.ops.convert_to_numpy(batch_counter))
    batches_before = batches_in_all_runs - batches_done  # of earlier runs
    updates_before = batches_before // batches_per_update
    return (
        (batches_before + num_batches) // batches_per_update - updates_before,
        batches_in_all_runs // batches_per_update - updates_before,
    )


def _order_callbacks(
    callbacks: Sequence[keras.callbacks.Callback], checkpoint: ResumableCheckpoint | None, epoch_data: Any
) -> list[keras.callbacks.Callback]:
    """Add the callbacks that every run needs, and return all in the order of their calls.

    Args:
        callbacks: the user's callbacks.
        checkpoint: the callback that saves the state of the run, or None.
        epoch_data: the data, if each epoch is a pass over the data; else None.
    """
    ordered_callbacks = [callback for callback in callbacks if callback is not checkpoint]
    if checkpoint is not None:  # last, so that it saves the effects of all other callbacks
        ordered_callbacks = [
            keras.callbacks.LambdaCallback(on_epoch_end=checkpoint.reopen),
            *ordered_callbacks,
            checkpoint,
        ]
    elif isinstance(epoch_data, Batches):
        ordered_callbacks = [*ordered_callbacks, keras.callbacks.LambdaCallback(on_epoch_begin=epoch_data.begin_epoch)]
    if not any(isinstance(callback, keras.callbacks.TerminateOnNaN) for callback in ordered_callbacks):
        ordered_callbacks = [StopOnDivergence(), *ordered_callbacks]  # before callbacks that save weights
    return ordered_callbacks
