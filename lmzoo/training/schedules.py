"""Learning-rate schedules that Keras lacks: warm-up, inverse square root and late decay."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.common.tensor_types import Tensor


@keras.saving.register_keras_serializable(package="lmzoo")
class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0 to the initial learning rate of another schedule, followed by that schedule.

    By default, the other schedule counts its steps from step 0, as in the code of BERT and ALBERT, so the learning rate
    drops slightly at the end of the warm-up. With `shift=True`, that schedule starts at the end of the warm-up, as for
    RoBERTa in fairseq. The learning rate of step 0 is 0. With `gradient_accumulation_steps`, the steps that Keras
    passes are batches, not updates.

    Args:
        schedule: `keras.optimizers.schedules.LearningRateSchedule`, such as `PolynomialDecay`.
        steps: int, number of warm-up steps.
        shift: bool, whether the schedule begins at the end of the warm-up instead of at step 0.
        name: str, name of the schedule.

    Raises:
        TypeError: If `schedule` is not a schedule.
        ValueError: If `steps` is negative.

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
        """Return the learning rate at `step`, an int or an integer tensor, as float32 with the shape of `step`."""
        step = ops.cast(step, "float32")
        scheduled_rate = self.schedule(ops.maximum(step - self.steps, 0.0) if self.shift else step)
        return ops.where(step < self.steps, self.schedule(0) * step / max(self.steps, 1), scheduled_rate)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        schedule = keras.optimizers.schedules.serialize(self.schedule)
        return {"schedule": schedule, "steps": self.steps, "shift": self.shift, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WarmUp:
        """Build the schedule from a config returned by `get_config`."""
        return cls(**{**config, "schedule": keras.optimizers.schedules.deserialize(config["schedule"])})


@keras.saving.register_keras_serializable(package="lmzoo")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """Constant learning rate, then a decay by the inverse square root of the step (Vaswani et al., 2017).

    After `steps` steps, the learning rate at step t is `peak * sqrt(steps / t)`. Inside a `WarmUp` of the same number
    of steps, this is the schedule of the paper (section 5.3), where the peak is `(d * steps) ** -0.5`.

    Args:
        peak: float, learning rate of the first `steps` steps.
        steps: int, number of steps before the decay, at least 1.
        name: str, name of the schedule.

    Raises:
        ValueError: If `peak` is negative or not finite, or `steps` is below 1.

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
        """Return the learning rate at `step`, an int or an integer tensor, as float32 with the shape of `step`."""
        return self.peak * ops.sqrt(self.steps / ops.maximum(ops.cast(step, "float32"), float(self.steps)))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return {"peak": self.peak, "steps": self.steps, "name": self.name}


@keras.saving.register_keras_serializable(package="lmzoo")
class LateDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Constant learning rate with a decay to 0 at the end of training.

    During the decay, the learning rate is `peak * (1 - sqrt(x))`, where x increases linearly from 0 at `begin` to 1 at
    `end`. Inside a `WarmUp` this is the schedule of Hu et al. (2024, https://arxiv.org/abs/2404.06395) with the decay
    of Hägele et al. (2024, https://arxiv.org/abs/2405.18392). Before the decay the learning rate does not depend on
    `end`, so a run can be extended from a state that was saved before the decay.

    Args:
        peak: float, learning rate before the decay.
        begin: int, first step of the decay.
        end: int, step at which the learning rate reaches 0; above `begin`.
        name: str, name of the schedule.

    Raises:
        ValueError: If `peak` is negative or not finite, `begin` is negative, or `end` is not above `begin`.

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
        """Return the learning rate at `step`, an int or an integer tensor, as float32 with the shape of `step`."""
        decay_progress = (ops.cast(step, "float32") - self.begin) / (self.end - self.begin)
        return self.peak * (1 - ops.sqrt(ops.clip(decay_progress, 0.0, 1.0)))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return {"peak": self.peak, "begin": self.begin, "end": self.end, "name": self.name}
