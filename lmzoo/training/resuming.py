"""Training that continues after an interruption exactly as if there had been none."""

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
from lmzoo.layers.finite import not_finite
from lmzoo.parallel.processes import check_same, gathered, process_index
from lmzoo.parallel.several_devices import on_every_process
from lmzoo.text.batching import Batches
from lmzoo.training.run_state import RunState, RunStates


class ResumableCheckpoint(keras.callbacks.Callback):
    """A checkpoint of a training run, also in the middle of an epoch, from which it continues.

    Pass the same callback to `fit` again, on the same texts, in this process or another: training continues with the
    batches, masks and dropout that would have come next, and on a CPU ends with exactly the same weights. A state holds
    the weights, the optimizer, the seeds of dropout and the position in the data. It is written whole or not at all. If
    it is damaged later, the one before is used, with a warning. A run that has finished its last epoch trains no
    further, unless `epochs` is larger than before.

    On SIGTERM, which clusters send before they reclaim a machine, the current step is finished and saved, `fit`
    returns, and `stopped` is True. On Ctrl-C (SIGINT) it is finished and saved, too, then `fit` raises
    `KeyboardInterrupt`; a second Ctrl-C does not wait for the step. Signals that are ignored remain so.

    The logs of a resumed epoch cover its remaining batches only. The state of other callbacks is not saved.

    If several processes train one model, pass it in all of them, with a folder that all can read. Process 0 writes the
    states, and another number of processes may continue from them. A signal to one process stops all after one step.

    Args:
        folder: where the states are saved, a path or a URL of fsspec such as s3:// or gs://; each run needs its own.
        every: int, steps between two states; by default one is saved after each epoch. The end of training is always
            saved.
        keep: int, how many states are kept.
        minutes: float, a state is also saved after the first step that ends this many minutes after the last state.

    Raises:
        KeyboardInterrupt: from `fit`, after Ctrl-C.
        ValueError: for `every` or `keep` below 1, or `minutes` that are not above 0; from `fit` if the folder holds a
            run of another model or on other data, or if the data is not a list of texts, documents or encoded
            sequences, token features, or a `lmzoo.data.stream`.

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
        self.every, self.minutes = every, minutes
        self._heard: int | None = None  # the first signal to this process in this `fit`
        self._signal: int | None = None  # the same, once all processes know of it
        self._late = False  # whether the last state is older than `minutes`, by the clock of process 0
        self._saved_at = 0.0  # seconds
        self._position: dict[str, Any] = {}
        self._place: Callable[[int], dict[str, int]] = lambda step: {}
        self._done = self._steps = self._epochs = 0
        self._cut_short = False

    @property
    def stopped(self) -> bool:
        """Whether a signal ended the last `fit`."""
        return self._signal is not None

    # === Called by the `fit` of a task ===

    def restore(self, model: keras.Model, data: object, epochs: int, steps: int, done: int) -> tuple[int, bool]:
        """Restore the newest state in the folder, if there is one, of a model whose optimizer is built.

        The seed of `data`, the batches, becomes that of the run. `done` steps count as done if there is no state.

        Returns:
            How many steps are done, and whether the optimizer's schedule was restored for the same number of epochs.

        Raises:
            ValueError: if the state belongs to another model or other data.
        """
        if not isinstance(data, Batches):
            raise ValueError(
                "A run can be resumed on a list of texts, documents or encoded sequences, on token features, or on a "
                "table that is read on demand, whose order can be repeated."
            )
        if model.steps_per_execution != 1:
            raise ValueError("A run can be resumed only if `steps_per_execution` is 1.")
        run = {**data.identity(), "steps of an epoch": steps}
        state, same = self._states.newest(), False
        check_same(state=None if state is None else state.name)
        if state is not None:
            position = state.position
            if changed := [name for name, value in run.items() if position["run"].get(name, value) != value]:
                raise ValueError(
                    f"{self._states.folder} holds a run with another {', another '.join(changed)}. Choose another "
                    "folder, or remove this one to start from scratch."
                )
            _load(state, model)
            data.seed, done, same = tuple(position["seed"]), position["done"], position["epochs"] == epochs
            data.begin_at(position.get("place", {}))
        self._place = data.place
        self._position = {"run": run, "seed": list(data.seed), "epochs": epochs}
        self._done, self._steps, self._epochs = done, steps, epochs
        self._heard, self._signal, self._cut_short, self._saved_at = None, None, False, time.monotonic()
        return done, same

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """In the body of a `with` block, SIGTERM and Ctrl-C mean to save and stop; only in Python's main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        # None stands for a handler that was not set from Python and cannot be restored.
        former = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGINT)}
        heard = {number: handler for number, handler in former.items() if handler != signal.SIG_IGN}

        def stop(number: int, frame: object) -> None:
            self._heard = self._heard or number
            if number == signal.SIGINT:
                signal.signal(number, former[signal.SIGINT])
                with contextlib.suppress(OSError, RuntimeError):  # no terminal any more, or interrupted while printing
                    print("\nStopping after this step. Press Ctrl-C again not to wait for it.", file=sys.stderr)

        for number in heard:
            signal.signal(number, stop)
        try:
            yield
        finally:
            for number, handler in heard.items():
                signal.signal(number, handler)
        self._signal = self._signal or self._heard
        if self._signal is not None:
            self.end_by_signal(self._signal)

    def end_by_signal(self, number: int) -> None:
        """End a `fit` that a signal stopped, after its state was saved.

        Raises:
            KeyboardInterrupt: after SIGINT. Other signals are only reported in a warning.
        """
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        message = f"Stopped by {name} after step {self._done}: the same `fit` continues from there."
        if number == signal.SIGINT:
            raise KeyboardInterrupt(message)
        warnings.warn(message, stacklevel=2)

    def reopen(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Let training continue after an epoch that began in an earlier `fit`; called before all other callbacks.

        In an epoch that was stopped, what was measured on a part of the validation data becomes NaN: it is not the best
        to any callback.
        """
        if self._cut_short:
            self.model.stop_training = self._cut_short = False
        if self._stopped_within_epoch and logs:
            logs.update((name, math.nan) for name in [*logs] if name.startswith("val_"))

    # === Called by Keras: after all other callbacks, so that what they did is saved ===

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Count the step, save if it is time, and end a resumed epoch where it would have ended."""
        self._done += 1
        self._agree()
        ends = self._done % self._steps == 0
        if self.stopped:
            self._save()
            self.model.stop_training = True
        elif not ends and self._due():
            self._save()
        elif ends and batch + 1 < self._steps and not self.model.stop_training:
            self.model.stop_training = self._cut_short = True

    def on_test_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """End a validation that nobody waits for: Keras begins one also in an epoch that was stopped."""
        if self._stopped_within_epoch:
            self.model.stop_evaluating = True

    @property
    def _stopped_within_epoch(self) -> bool:
        return self.stopped and self._done % self._steps > 0

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Save if it is time."""
        self._agree()
        if self.stopped:
            self.model.stop_training = True
        due = self.every is None or self._due() or self._done == self._epochs * self._steps
        if self._done % self._steps == 0 and (due or self.model.stop_training):
            self._save()

    def _due(self) -> bool:
        return self._late or (self.every is not None and self._done % self.every == 0)

    def _agree(self) -> None:
        """Take note of what one process knows and all must act upon in the same step."""
        late = self.minutes is not None and time.monotonic() - self._saved_at >= 60 * self.minutes
        signals, lates = gathered([self._heard or 0, late]).T  # (P,) each
        self._signal, self._late = int(signals.max()) or None, bool(lates[0])

    def _save(self) -> None:
        model = self.model  # on JAX, reading this property updates the variables
        arrays, position = _arrays(model), {**self._position, "done": self._done, "place": self._place(self._done)}
        if process_index() == 0:
            self._states.write(self._done, arrays, position)
        else:
            collections.deque(arrays, maxlen=0)  # all processes together read weights that are split between them
        self._saved_at, self._late = time.monotonic(), False


def _variables(model: keras.Model) -> Iterator[tuple[str, keras.Variable]]:
    """Yield all variables of the training, named by their order, since their names differ between processes."""
    of_model = [variable for variable in model.variables if variable.name != OUTSIDE_TRAINING]
    for part, variables in (("model", of_model), ("optimizer", model.optimizer.variables)):
        for index, variable in enumerate(variables):
            yield f"{part}.{index}", variable


def _arrays(model: keras.Model) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the values of all variables.

    Raises:
        NotFiniteError: naming the first that is NaN or infinite: a run that continued from it could not recover.
    """
    for name, variable in _variables(model):
        array = np.asarray(keras.ops.convert_to_numpy(on_every_process(keras.ops.convert_to_tensor(variable))))
        if problem := not_finite(variable.path, array):
            raise NotFiniteError(
                f"Training diverged: {problem}. The state is not saved, and the one before is kept; start again in "
                "another folder with a lower learning rate."
            )
        yield name, array


def _load(state: RunState, model: keras.Model) -> None:
    variables, tensors = dict(_variables(model)), state.tensors
    found = {name: (tuple(v.shape), keras.backend.standardize_dtype(v.dtype)) for name, v in variables.items()}
    if found != {name: (tensors.shape(name), tensors.dtype(name)) for name in tensors.names()}:
        raise ValueError(f"{state.path} was saved from another model, or with another optimizer.")
    for name, variable in variables.items():
        variable.assign(tensors.read(name))
