"""Learning-rate schedules that Keras lacks: a warm-up before any other, the inverse square root, and a late decay."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.common.tensor_types import Tensor


@keras.saving.register_keras_serializable(package="lmzoo")
class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """A linear rise from 0 to the first rate of another schedule, and then that schedule.

    The code of BERT and ALBERT decays from step 0 on, below the warm-up, so that the rate drops a little where the
    warm-up ends. fairseq's RoBERTa decays over the remaining steps only: `shift=True`. The rate of step 0 is 0. With
    `gradient_accumulation_steps` Keras counts batches here, not updates.

    Args:
        schedule: `keras.optimizers.schedules.LearningRateSchedule`, such as `PolynomialDecay`.
        steps: int, steps of the rise.
        shift: whether the schedule begins at the end of the rise instead of at its beginning.
        name: name of the schedule.

    Raises:
        ValueError: for fewer than 0 steps.

    Example:

    ```python
    import keras
    from lmzoo.training import AdamW, WarmUp

    decay = keras.optimizers.schedules.PolynomialDecay(1e-4, 1_000_000, end_learning_rate=0.0)
    optimizer = AdamW(WarmUp(decay, 10_000), global_clipnorm=1.0, bias_correction=False)  # BERT
    decay = keras.optimizers.schedules.PolynomialDecay(6e-4, 500_000 - 24_000, end_learning_rate=0.0)
    optimizer = AdamW(WarmUp(decay, 24_000, shift=True), beta_2=0.98, exclude_from_decay=())  # RoBERTa
    ```
    """

    def __init__(
        self,
        schedule: keras.optimizers.schedules.LearningRateSchedule,
        steps: int,
        shift: bool = False,
        name: str = "warm_up",
    ) -> None:
        if not callable(schedule):
            raise TypeError(
                f"`schedule` must be a Keras schedule, got {schedule!r:.60}. For a constant rate after the warm-up: "
                "`PolynomialDecay(rate, 1, end_learning_rate=rate)`."
            )
        require(is_integer(steps, 0), "steps", "an integer of at least 0", steps)
        self.schedule = schedule
        self.steps = steps
        self.shift = shift
        self.name = name

    def __call__(self, step: int | Tensor) -> Tensor:
        """Return the rate of a step, an int or an integer tensor."""
        step = ops.cast(step, "float32")
        after = self.schedule(ops.maximum(step - self.steps, 0.0) if self.shift else step)
        return ops.where(step < self.steps, self.schedule(0) * step / max(self.steps, 1), after)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        schedule = keras.optimizers.schedules.serialize(self.schedule)
        return {"schedule": schedule, "steps": self.steps, "shift": self.shift, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WarmUp:
        """Build the schedule from `get_config`'s output."""
        return cls(**{**config, "schedule": keras.optimizers.schedules.deserialize(config["schedule"])})


@keras.saving.register_keras_serializable(package="lmzoo")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """A constant rate for some steps, and then one that falls with the square root of the step (Vaswani et al., 2017).

    After a `WarmUp` of as many steps it is the paper's schedule (section 5.3), where the peak is `(d * steps) ** -0.5`.

    Args:
        peak: float, the rate up to `steps`; after t steps it is `peak * sqrt(steps / t)`.
        steps: int, at least 1.
        name: name of the schedule.

    Raises:
        ValueError: for fewer than 1 step.

    Example:

    ```python
    from lmzoo.training import InverseSquareRoot, WarmUp

    schedule = WarmUp(InverseSquareRoot(7e-4, 4_000), 4_000)
    ```
    """

    def __init__(self, peak: float, steps: int, name: str = "inverse_square_root") -> None:
        require(is_number(peak, 0) and peak < math.inf, "peak", "a finite number of at least 0", peak)
        require(is_integer(steps, 1), "steps", "an integer of at least 1", steps)
        self.peak = peak
        self.steps = steps
        self.name = name

    def __call__(self, step: int | Tensor) -> Tensor:
        """Return the rate of a step, an int or an integer tensor."""
        return self.peak * ops.sqrt(self.steps / ops.maximum(ops.cast(step, "float32"), float(self.steps)))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"peak": self.peak, "steps": self.steps, "name": self.name}


@keras.saving.register_keras_serializable(package="lmzoo")
class LateDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A constant rate, and at the end a decay to 0: `peak * (1 - sqrt(x))`, where x rises from 0 to 1.

    After a `WarmUp` it is the schedule of Hu et al. (2024, https://arxiv.org/abs/2404.06395) with the decay of Hägele
    et al. (2024, https://arxiv.org/abs/2405.18392). Until the decay begins, the rate does not depend on its end:
    training can be made longer from there.

    Args:
        peak: float, the rate up to `begin`.
        begin: int, the step at which the decay begins.
        end: int, the step from which on the rate is 0; above `begin`.
        name: name of the schedule.

    Raises:
        ValueError: for a negative `begin`, or an `end` that is not above it.

    Example:

    ```python
    from lmzoo.training import LateDecay, WarmUp

    schedule = WarmUp(LateDecay(1e-3, begin=80_000, end=100_000), 500)
    ```
    """

    def __init__(self, peak: float, begin: int, end: int, name: str = "late_decay") -> None:
        require(is_number(peak, 0) and peak < math.inf, "peak", "a finite number of at least 0", peak)
        require(is_integer(begin, 0), "begin", "an integer of at least 0", begin)
        require(is_integer(end, begin + 1), "end", f"an integer above `begin`, {begin}", end)
        self.peak = peak
        self.begin = begin
        self.end = end
        self.name = name

    def __call__(self, step: int | Tensor) -> Tensor:
        """Return the rate of a step, an int or an integer tensor."""
        done = (ops.cast(step, "float32") - self.begin) / (self.end - self.begin)
        return self.peak * (1 - ops.sqrt(ops.clip(done, 0.0, 1.0)))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"peak": self.peak, "begin": self.begin, "end": self.end, "name": self.name}
