"""The optimizers of the published models: AdamW and LAMB with a resizable schedule, and bilm-tf's Adagrad."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import is_integer, is_number, require, require_share
from lmzoo.common.tensor_types import Tensor

_WORTH_COMPILING = 20_000_000  # weights; for fewer, TensorFlow's own kernel is as fast, and nothing is compiled
# The factor of the rate by the share of the decay that is left, and the share of the steps that were the warm-up.
_SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda left, warm: left,
    "cosine": lambda left, warm: 0.5 - 0.5 * ops.cos(math.pi * left),
    "constant": lambda left, warm: ops.ones_like(left),
    "inverse_square_root": lambda left, warm: ops.sqrt(warm),
}
Rate: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule


def _checked_rate(rate: Rate) -> Rate:
    """Return a valid number as a float, and a schedule unchanged."""
    if callable(rate):
        return rate
    require(
        is_number(rate, 0) and rate < math.inf, "learning_rate", "a finite number of at least 0, or a schedule", rate
    )
    return float(rate)


def _check_constants(arguments: Mapping[str, object], **constants: float) -> None:
    """Check an optimizer's constants, and limits of gradients among its other arguments."""
    for name, value in constants.items():
        require(is_number(value, 0) and value < math.inf, name, "a finite number of at least 0", value)
    for name in ("clipnorm", "clipvalue", "global_clipnorm"):
        if (limit := arguments.get(name)) is not None:
            require(is_number(limit, 0) and limit != 0, name, "a positive number or None", limit)


@keras.saving.register_keras_serializable(package="lmzoo")
class AdamW(keras.optimizers.Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019) and a warm-up and decay that can be re-sized.

    The schedule multiplies `learning_rate`, which stays an ordinary variable: callbacks such as `ReduceLROnPlateau` can
    set it, and a second `fit` can start a new schedule without recompiling. On TensorFlow one operation updates
    a weight, `ResourceApplyAdam`; for a model of 20 million weights or more the update is compiled with XLA.

    Args:
        learning_rate: float, the peak; or a schedule.
        weight_decay: float; not applied to variables whose path contains an entry of `exclude_from_decay`.
        beta_1: float, decay of the first moment.
        beta_2: float, decay of the second moment.
        epsilon: float, added to the root of the second moment.
        bias_correction: False for the form of BERT's own code (Devlin et al., 2019).
        exclude_from_decay: substrings of variable paths.
        name: name of the optimizer.
        schedule: how the rate falls after the warm-up, which is linear: "linear", "cosine", "inverse_square_root"
            (Vaswani et al., 2017), or "constant" if it does not.
        **kwargs: of `keras.optimizers.Optimizer`, such as `global_clipnorm`.

    Raises:
        TypeError: if `exclude_from_decay` is not a list of strings.
        ValueError: for a learning rate, a weight decay or an epsilon below 0, infinite or not a number; for a beta
            outside of [0, 1), or an unknown schedule.

    Example:

    ```python
    from lmzoo.training import AdamW

    optimizer = AdamW(3e-4, global_clipnorm=1.0)
    ```
    """

    def __init__(
        self,
        learning_rate: Rate = 5e-5,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        bias_correction: bool = True,
        exclude_from_decay: Sequence[str] = ("bias", "layer_norm", "final_norm"),
        name: str = "adamw",
        schedule: str = "linear",
        **kwargs: Any,
    ) -> None:
        if schedule not in _SHAPES:
            raise ValueError(f"`schedule` must be one of {', '.join(_SHAPES)}, got {schedule!r}.")
        _check_constants(kwargs, weight_decay=weight_decay, epsilon=epsilon)
        require(epsilon > 0, "epsilon", "a positive number", epsilon)
        require_share("beta_1", beta_1)
        require_share("beta_2", beta_2)
        listed = isinstance(exclude_from_decay, Iterable) and not isinstance(exclude_from_decay, str)
        if not (listed and all(isinstance(part, str) for part in exclude_from_decay)):
            raise TypeError(f"`exclude_from_decay` must be a list of strings, got {exclude_from_decay!r:.60}.")
        super().__init__(learning_rate=_checked_rate(learning_rate), name=name, **kwargs)
        self.decay = weight_decay
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self.exclude_from_decay = tuple(exclude_from_decay)
        self.schedule = schedule
        self._identities: list[int] = []  # of the trainable variables
        self._num_weights = 0
        self._compiled: Callable[[Sequence[Tensor | None]], None] | None = None
        self._rate: Tensor | float = 0.0
        self._sizes: tuple[Tensor | float, Tensor | float] = (0.0, 0.0)
        self._kernel: Callable[..., None] | None = None

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the moments and the schedule's state."""
        if self.built:
            return
        super().build(variables)
        self._identities = [*map(id, variables)]
        self._num_weights = sum(math.prod(variable.shape) for variable in variables)
        self._first, self._second = self.add_optimizer_variables(variables, ["first_moment", "second_moment"])
        self._decayed = [not any(part in v.path for part in self.exclude_from_decay) for v in variables]
        # [first step, warm-up steps, total steps]; zeros mean none.
        self._schedule = self.add_variable(shape=(3,), dtype="float32", name="schedule")

    def start_schedule(self, warmup_steps: int = 0, total_steps: int = 0, elapsed: int = 0) -> None:
        """Begin a new warm-up and decay at the current iteration.

        Args:
            warmup_steps: int, steps of linear growth from 0 to `learning_rate`.
            total_steps: int, step at which the rate has fallen to 0; 0 keeps it constant after the warm-up.
            elapsed: int, steps of this schedule that were done before training was resumed.

        Raises:
            ValueError: before `build`; for a number of steps that is negative or not an integer.
        """
        for name, value in (("warmup_steps", warmup_steps), ("total_steps", total_steps), ("elapsed", elapsed)):
            require(is_integer(value, 0), name, "an integer of at least 0", value)
        if not self.built:
            raise ValueError("Build the optimizer (`optimizer.build(model.trainable_variables)`) before its schedule.")
        start = int(ops.convert_to_numpy(self.iterations)) - elapsed
        self._schedule.assign([float(start), float(warmup_steps), float(total_steps)])

    def _factor(self) -> Tensor:
        schedule = ops.convert_to_tensor(self._schedule)
        start, warmup, total = schedule[0], schedule[1], schedule[2]
        step = ops.cast(self.iterations, "float32") - start
        rise = ops.where(warmup > 0, ops.minimum(1.0, (step + 1) / ops.maximum(warmup, 1.0)), 1.0)
        left = ops.clip((total - step) / ops.maximum(total - warmup, 1.0), 0.0, 1.0)
        first = ops.maximum(warmup, 1.0)
        warm = first / ops.maximum(step + 1, first)
        return rise * ops.where(total > 0, _SHAPES[self.schedule](left, warm), 1.0)

    def apply(self, grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        """Clip the gradients and update every variable once."""
        if keras.backend.backend() != "tensorflow":
            self._update(grads, trainable_variables)
            return
        import tensorflow as tf

        dense = _dense(grads)
        whole = trainable_variables is None or [*map(id, trainable_variables)] == self._identities
        large = self._num_weights >= _WORTH_COMPILING
        if not (whole and large and tf.inside_function()) or tf.distribute.has_strategy():
            self._update(dense, trainable_variables)
            return
        if self._compiled is None:
            # An update is bound by memory: compiled, it reads and writes each weight and moment once. Its shapes are
            # the weights', so this compiles once, whatever the batches look like.
            self._compiled = tf.function(self._update, jit_compile=True, autograph=False)
        self._compiled(dense)

    def _update(
        self, grads: Sequence[Tensor | None], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> None:
        if not self.built:
            with keras.name_scope(self.name):
                self.build(list(trainable_variables or ()))
        self._rate = rate = ops.cast(self.learning_rate, "float32") * self._factor()
        step = ops.cast(self.iterations + 1, "float32")
        # 1 - beta ** step, which loses digits where a power of 0.999 in float32 is subtracted from 1.
        left_1 = -ops.expm1(step * math.log(self.beta_1)) if self.bias_correction and self.beta_1 else 1.0
        left_2 = -ops.expm1(step * math.log(self.beta_2)) if self.bias_correction and self.beta_2 else 1.0
        # The same for all variables, so computed once.
        self._sizes = rate * ops.sqrt(left_2) / left_1, rate * self.decay
        self._kernel = self._tensorflow_kernel(self._sizes[0])
        super().apply(grads, trainable_variables)

    def _tensorflow_kernel(self, scale: Tensor | float) -> Callable[..., None] | None:
        """TensorFlow's update of a float32 weight and its moments in one operation, where there is one."""
        if keras.backend.backend() != "tensorflow" or type(self).scaled is not AdamW.scaled:
            return None
        import tensorflow as tf

        if tf.distribute.has_strategy():
            return None
        # The kernel subtracts its betas from 1 in float32, where 1 - 0.999 is 0.00099998713: each moment is that much
        # smaller, which the rate and epsilon make up for.
        share_1 = float(1 - np.float32(self.beta_1)) / (1 - self.beta_1)
        share_2 = math.sqrt(float(1 - np.float32(self.beta_2)) / (1 - self.beta_2))
        constants = {
            "lr": scale * share_2 / share_1,
            "beta1": self.beta_1,
            "beta2": self.beta_2,
            "beta1_power": 0.0,  # the rate is corrected already
            "beta2_power": 0.0,
            "epsilon": self.epsilon * share_2,
        }
        return partial(
            tf.raw_ops.ResourceApplyAdam, **{name: tf.cast(value, tf.float32) for name, value in constants.items()}
        )

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        """Update one variable and its moments."""
        index = self._get_variable_index(variable)  # as in the example of Keras' page of `Optimizer`
        first, second = self._first[index], self._second[index]
        scale, decay = (ops.cast(size, variable.dtype) for size in self._sizes)
        gradient = ops.cast(gradient, variable.dtype)
        decays = self._decayed[index] and self.decay
        if self._kernel and variable.dtype == "float32":
            if decays:
                self.assign_sub(variable, decay * variable)
            handles = {"var": variable.handle, "m": first.value.handle, "v": second.value.handle}
            self._kernel(**handles, grad=gradient)
            return
        self.assign_add(first, (gradient - first) * (1 - self.beta_1))
        self.assign_add(second, (ops.square(gradient) - second) * (1 - self.beta_2))
        change = scale * first / (ops.sqrt(second) + self.epsilon)
        if decays:
            change = change + decay * variable
        self.assign_sub(variable, self.scaled(change, variable, index))

    def scaled(self, change: Tensor, variable: keras.Variable, index: int) -> Tensor:
        """Return the update that is subtracted from a variable; a subclass may scale it.

        `change` is already multiplied by the learning rate; `index` is the variable's among those of `build`.
        """
        return change

    def get_config(self) -> dict[str, Any]:
        return {
            **{k: v for k, v in super().get_config().items() if k != "weight_decay"},
            "weight_decay": self.decay,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "bias_correction": self.bias_correction,
            "exclude_from_decay": list(self.exclude_from_decay),
            "schedule": self.schedule,
        }


@keras.saving.register_keras_serializable(package="lmzoo")
class LAMB(AdamW):
    """Adam whose step is scaled to the norm of each weight (You et al., 2020), for very large batches.

    With `u` the update of `AdamW`, weight decay included, a weight `p` becomes `p - rate * |p| / |u| * u`, where the
    ratio of the norms is 1 if either is 0, and for variables that are excluded from decay. The defaults are those of
    ALBERT's code (Lan et al., 2020, section A.1 and `optimization.py`), so there is no bias correction.
    `keras.optimizers.Lamb` always corrects, and leaves the decay out of the norm.

    Args:
        learning_rate: float, the peak; or a schedule.
        bias_correction: True for the form of the paper.
        name: name of the optimizer.
        **kwargs: of `AdamW`.

    Example:

    ```python
    from lmzoo.training import LAMB

    optimizer = LAMB(1.76e-3, global_clipnorm=1.0)
    ```
    """

    def __init__(
        self, learning_rate: Rate = 1.76e-3, *, bias_correction: bool = False, name: str = "lamb", **kwargs: Any
    ) -> None:
        super().__init__(learning_rate, bias_correction=bias_correction, name=name, **kwargs)

    def scaled(self, change: Tensor, variable: keras.Variable, index: int) -> Tensor:
        """Return the change times the ratio of the norms."""
        if not self._decayed[index]:
            return change
        weight, update = (ops.sqrt(ops.sum(ops.square(ops.cast(x, "float32")))) for x in (variable, change))
        # The norm of the change is the learning rate times that of `u`; where it is 0, any ratio is right.
        ratio = ops.where(weight > 0, self._rate * ops.divide_no_nan(weight, update), 1.0)
        return ops.cast(ratio, change.dtype) * change


@keras.saving.register_keras_serializable(package="lmzoo")
class Adagrad(keras.optimizers.Adagrad):
    """Adagrad (Duchi et al., 2011) with the constants of bilm-tf, ELMo's training code (Peters et al., 2018).

    A weight `p` with gradient `g` becomes `p - rate * g / sqrt(a)` after `a` has become `a + g * g`; `a` starts from 1.
    bilm-tf's gradient is that of the mean loss times the number of steps of a sequence.

    Args:
        learning_rate: float, or a schedule.
        initial_accumulator_value: float, `a` at the start.
        global_clipnorm: float, largest norm of all gradients together, or None.
        **kwargs: of `keras.optimizers.Adagrad`.

    Example:

    ```python
    from lmzoo.training import Adagrad

    optimizer = Adagrad()
    ```
    """

    def __init__(
        self,
        learning_rate: Rate = 0.2,
        initial_accumulator_value: float = 1.0,
        global_clipnorm: float | None = 10.0,
        **kwargs: Any,
    ) -> None:
        rate = _checked_rate(learning_rate)
        # bilm-tf adds no epsilon.
        kwargs = {"epsilon": 0.0, **kwargs, "global_clipnorm": global_clipnorm}
        _check_constants(kwargs, initial_accumulator_value=initial_accumulator_value, epsilon=kwargs["epsilon"])
        if initial_accumulator_value == kwargs["epsilon"] == 0:
            raise ValueError(
                "`initial_accumulator_value` and `epsilon` are both 0: weights without a gradient become NaN."
            )
        super().__init__(rate, initial_accumulator_value, **kwargs)

    def apply(self, grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        """Clip the gradients and update every variable once."""
        super().apply(_dense(grads), trainable_variables)


def _dense(grads: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Make TensorFlow's sparse gradients dense, whose norm is wrong where they repeat rows; all get one dtype, too."""
    if keras.backend.backend() != "tensorflow":
        return grads
    import tensorflow as tf

    dense = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]
    if len({g.dtype for g in dense if g is not None}) > 1:  # TensorFlow's norm of all of them has one
        return [None if g is None else tf.cast(g, tf.float32) for g in dense]
    return dense
