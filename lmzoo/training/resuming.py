"""Callback for training that can be stopped and resumed with the same result."""

from __future__ import annotations

import collections
import contextlib
import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.errors import NotFiniteError
from lmzoo.files.atomic import check_path
from lmzoo.files.urls import is_url
from lmzoo.layers.carried_state import OUTSIDE_TRAINING
from lmzoo.layers.finite import describe_not_finite
from lmzoo.parallel.processes import all_gather, check_same, process_index
from lmzoo.parallel.several_devices import copy_to_every_process
from lmzoo.text.batching import Batches
from lmzoo.training.run_state import RunState, RunStates


class ResumableCheckpoint(keras.callbacks.Callback):
    """Callback that saves the state of a training run, so that a later `fit` can continue it.

    To resume, call `fit` with a callback for the same folder and on the same texts, in this process or another.
    Training continues with the next batches, masks and dropout, even within an epoch, and on a CPU ends with exactly
    the same weights. A state holds the weights, the optimizer, the seeds of dropout and the position in the data, and
    is written atomically. If a state is damaged later, the previous one is used, with a warning. After the last epoch,
    `fit` only continues if `epochs` is increased.

    On SIGTERM, which clusters send before they reclaim a machine, the current step is finished and saved, `fit`
    returns, and `stopped` is True. On Ctrl-C (SIGINT) the step is also finished and saved, then `fit` raises
    `KeyboardInterrupt`; a second Ctrl-C interrupts the step. A signal also ends a validation, whose metrics are then
    NaN. The state is saved before other callbacks, such as `ReduceLROnPlateau`, act on these metrics; the resumed run
    continues with the next epoch. Ignored signals stay ignored.

    The logs of a resumed epoch cover its remaining batches only. The state of other callbacks is not saved. The
    callback works in the `fit` of a task and in `fit_together`, but not in `distill` or in other models.

    If several processes train one model, pass the callback in each process, with a folder that all can read. Process 0
    writes the states. The number of processes may change between runs. A signal to one process stops all of them after
    the same step.

    Args:
        folder: path or fsspec URL, such as s3:// or gs://, of the directory for the states of this run.
        every: int, number of steps between two saved states; by default a state is saved after each epoch. The end of
            training is always saved.
        keep: int, number of states to keep.
        minutes: float, number of minutes since the last state after which another is saved, at the end of a step; None
            to ignore the time.

    Raises:
        KeyboardInterrupt: From `fit`, after Ctrl-C.
        ValueError: If `every` or `keep` is below 1, or `minutes` is not above 0; from `fit`, if the folder holds a run
            of another model or on other data, or only damaged states; if the data is anything but a list of texts,
            documents or encoded sequences, token features, or a `lmzoo.data.stream`; if `steps_per_execution` is not 1;
            or if the model is not a task.

    Example:

    ```python
    import lmzoo
    from lmzoo.training import ResumableCheckpoint

    model = lmzoo.models.MaskedLM.from_preset("bert_nano_en_uncased")
    checkpoint = ResumableCheckpoint("run", minutes=5)
    model.fit(["The sea was calm.", "The wind turned."], epochs=2, callbacks=[checkpoint], verbose=0)
    ```
    """

    def __init__(
        self, folder: str | Path, every: int | None = None, keep: int = 2, minutes: float | None = None
    ) -> None:
        super().__init__()
        for name, value in (("every", 1 if every is None else every), ("keep", keep)):
            require(is_integer(value, 1), name, "an integer of at least 1", value)
        require(minutes is None or (is_number(minutes) and minutes > 0), "minutes", "a number above 0", minutes)
        check_path(folder)
        self._states = RunStates(folder if is_url(folder) else Path(folder).expanduser().resolve(), keep)
        self.every = every
        self.minutes = minutes
        self._received_signal: int | None = None  # the first signal that this process received in this `fit`
        self._signal: int | None = None  # the first signal that any process received, once all of them know it
        self._is_overdue = False  # whether the last state is older than `minutes`, by the clock of process 0
        self._saved_at = 0.0  # seconds
        self._position: dict[str, Any] = {}
        self._place: Callable[[int], dict[str, int]] = lambda step: {}
        self._done = 0
        self._steps = 0  # of an epoch
        self._epochs = 0
        self._cut_short = False
        self._validation_is_cut = False
        self._restored_model: keras.Model | None = None

    @property
    def stopped(self) -> bool:
        """Whether a signal stopped the last `fit`."""
        return self._signal is not None

    # === Called by the `fit` of a task ===

    def restore(self, model: keras.Model, data: object, epochs: int, steps: int, done: int) -> tuple[int, bool]:
        """Restore the newest saved state, if there is one.

        Args:
            model: a task with a built optimizer.
            data: `lmzoo.text.batching.Batches`, whose seed and position are set to those in the saved state.
            epochs: int, number of epochs of the training.
            steps: int, number of steps of an epoch.
            done: int, number of steps to count as done if there is no saved state.

        Returns:
            The number of steps done, and whether a schedule was restored that is for the same number of epochs.

        Raises:
            ValueError: If the state belongs to another model or other data, all states are damaged, or a run with such
                data or settings cannot be resumed.
        """
        if not isinstance(data, Batches):
            raise ValueError(
                "A run can be resumed on a list of texts, documents or encoded sequences, on token features, or on a "
                "table that is read on demand, whose order can be repeated."
            )
        if model.steps_per_execution != 1:
            raise ValueError("A run can be resumed only if `steps_per_execution` is 1.")
        identity = {**data.identity(), "steps of an epoch": steps}
        state = self._states.newest()
        same_schedule = False
        check_same(state=None if state is None else state.name)
        if state is not None:
            position = state.position
            if changed_settings := [
                name for name, value in identity.items() if position["run"].get(name, value) != value
            ]:
                raise ValueError(
                    f"{self._states.folder} holds a run that differs in {', '.join(changed_settings)}. Choose another "
                    "folder, or remove this one to start from scratch."
                )
            _load_state(state, model)
            data.seed = tuple(position["seed"])
            done = position["done"]
            same_schedule = position["epochs"] == epochs
            data.begin_at(position.get("place", {}))
        self._restored_model = model
        self._place = data.place
        self._position = {"run": identity, "seed": list(data.seed), "epochs": epochs}
        self._done = done
        self._steps = steps
        self._epochs = epochs
        self._received_signal = None
        self._signal = None
        self._cut_short = False
        self._validation_is_cut = False
        self._saved_at = time.monotonic()
        return done, same_schedule

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Save and stop after the current step on SIGTERM or Ctrl-C; do nothing outside of the main thread.

        Raises:
            KeyboardInterrupt: At the end of the block, if Ctrl-C stopped the training.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        # None stands for a handler that was not set from Python and cannot be restored.
        previous_handlers = {
            number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGINT)
        }
        replaced_handlers = {
            number: handler for number, handler in previous_handlers.items() if handler != signal.SIG_IGN
        }

        def stop(signal_number: int, frame: object) -> None:
            self._received_signal = self._received_signal or signal_number
            if signal_number == signal.SIGINT:
                signal.signal(signal_number, previous_handlers[signal.SIGINT])
                with contextlib.suppress(OSError, RuntimeError):  # the terminal is closed, or this interrupts a print
                    print("\nStopping after this step. Press Ctrl-C again not to wait for it.", file=sys.stderr)

        for number in replaced_handlers:
            signal.signal(number, stop)
        try:
            yield
        finally:
            for number, handler in replaced_handlers.items():
                signal.signal(number, handler)
        self._signal = self._signal or self._received_signal
        if self._signal is not None:
            self.end_by_signal(self._signal)

    def end_by_signal(self, number: int) -> None:
        """Report that a signal stopped `fit` after the state was saved.

        Signals other than SIGINT are reported in a warning.

        Raises:
            KeyboardInterrupt: After SIGINT.
        """
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        message = f"Stopped by {name} after step {self._done}: the same `fit` continues from there."
        if number == signal.SIGINT:
            raise KeyboardInterrupt(message)
        warnings.warn(message, stacklevel=2)

    def reopen(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Let training continue after a resumed epoch, and mark the metrics of a stopped validation as NaN.

        It is called at the end of an epoch, before all other callbacks, so that no callback mistakes metrics on part of
        the data for the best values.
        """
        if self._cut_short:
            self.model.stop_training = False
            self._cut_short = False
        if self._validation_is_cut and logs:
            logs.update((name, math.nan) for name in [*logs] if name.startswith("val_"))

    # === Called by Keras, after all other callbacks, so that their effects are saved ===

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Check that `restore` was called for this training run.

        Raises:
            ValueError: If anything but the `fit` of a task or `fit_together` trains the model.
        """
        if self._restored_model is not self.model:
            raise ValueError(
                "ResumableCheckpoint needs the `fit` of a task or `fit_together`, whose data it can continue, got a "
                f"`fit` of {type(self.model).__name__}. Elsewhere, pass `keras.callbacks.ModelCheckpoint`."
            )

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Count the step, save the state if it is due, and end a resumed epoch after its remaining steps."""
        self._done += 1
        self._share_signals()
        epoch_ends = self._done % self._steps == 0
        if self.stopped:
            self._save()
            self.model.stop_training = True
        elif not epoch_ends and self._is_due():
            self._save()
        elif epoch_ends and batch + 1 < self._steps and not self.model.stop_training:
            self.model.stop_training = True
            self._cut_short = True

    def on_test_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """End the validation after a signal, also if the signal came before Keras started the validation."""
        self._share_signals()
        if self.stopped:
            self.model.stop_evaluating = True
            self._validation_is_cut = True

    def on_test_end(self, logs: dict[str, float] | None = None) -> None:
        """Save the state after a stopped validation, before other callbacks act on its metrics.

        By now, `keras.callbacks.SwapEMAWeights` has taken the averages out of the model.
        """
        if self._validation_is_cut:
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Save the state if it is due at the end of an epoch, and stop training after a signal.

        If a signal ended the validation, `on_test_end` has saved the state.
        """
        self._share_signals()
        if self.stopped:
            self.model.stop_training = True
        if self._validation_is_cut or self._done % self._steps != 0:
            return
        is_last_step = self._done == self._epochs * self._steps
        if self.every is None or self._is_due() or is_last_step or self.model.stop_training:
            self._save()

    def _is_due(self) -> bool:
        return self._is_overdue or (self.every is not None and self._done % self.every == 0)

    def _share_signals(self) -> None:
        """Share stop signals and the save timer, so that all processes act in the same step."""
        is_overdue = self.minutes is not None and time.monotonic() - self._saved_at >= 60 * self.minutes
        signals, overdue_flags = all_gather([self._received_signal or 0, is_overdue]).T  # one entry per process
        self._signal = int(signals.max()) or None
        self._is_overdue = bool(overdue_flags[0])

    def _save(self) -> None:
        model = self.model  # on JAX, reading this property updates the variables
        arrays = _read_arrays(model)
        position = {**self._position, "done": self._done, "place": self._place(self._done)}
        if process_index() == 0:
            self._states.write(self._done, arrays, position)
        else:
            collections.deque(arrays, maxlen=0)  # all processes must read sharded weights together
        self._saved_at = time.monotonic()
        self._is_overdue = False


def _number_variables(model: keras.Model) -> Iterator[tuple[str, keras.Variable]]:
    """Yield the variables of a model and its optimizer by number, since Keras' names differ between processes.

    Variables for use outside of training are left out.
    """
    model_variables = [variable for variable in model.variables if variable.name != OUTSIDE_TRAINING]
    for owner, variables in (("model", model_variables), ("optimizer", model.optimizer.variables)):
        for index, variable in enumerate(variables):
            yield f"{owner}.{index}", variable


def _read_arrays(model: keras.Model) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and values of all variables.

    Raises:
        NotFiniteError: If a value is NaN or infinite, since a run could not recover from such a state.
    """
    for name, variable in _number_variables(model):
        array = np.asarray(keras.ops.convert_to_numpy(copy_to_every_process(keras.ops.convert_to_tensor(variable))))
        if problem := describe_not_finite(variable.path, array):
            raise NotFiniteError(
                f"Training diverged: {problem}. The state is not saved, and the one before is kept; start again in "
                "another folder with a lower learning rate."
            )
        yield name, array


def _load_state(state: RunState, model: keras.Model) -> None:
    """Assign the arrays of a saved state to the variables of the model and its optimizer.

    Raises:
        ValueError: If the names, shapes or dtypes of the arrays do not match the variables.
    """
    variables = dict(_number_variables(model))
    tensors = state.tensors
    specs = {name: (tuple(v.shape), keras.backend.standardize_dtype(v.dtype)) for name, v in variables.items()}
    if specs != {name: (tensors.shape(name), tensors.dtype(name)) for name in tensors.names()}:
        raise ValueError(f"{state.path} was saved from another model, or with another optimizer.")
    for name, variable in variables.items():
        variable.assign(tensors.read(name))
