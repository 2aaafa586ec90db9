"""Optimizers of the published models: AdamW and LAMB with a built-in schedule, and Adagrad as in bilm-tf."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import as_python_values, is_integer, is_number, require, require_share
from lmzoo.common.tensor_types import Shape, Tensor

_MIN_WEIGHTS_TO_COMPILE = 20_000_000  # below it, TensorFlow's own kernel is as fast as a compiled update
# Factors of the learning rate, given the remaining fraction of the decay and the ratio of warm-up steps to steps done.
_DECAY_FACTORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda remaining, warmup_ratio: remaining,
    "cosine": lambda remaining, warmup_ratio: 0.5 - 0.5 * ops.cos(math.pi * remaining),
    "constant": lambda remaining, warmup_ratio: ops.ones_like(remaining),
    "inverse_square_root": lambda remaining, warmup_ratio: ops.sqrt(warmup_ratio),
    "slanted_triangular": lambda remaining, warmup_ratio: remaining,
}
_SCHEDULES_TO_ZERO = ("linear", "cosine")  # schedules that end with the learning rate 0
_HALF_PRECISION = ("bfloat16", "float16")
_SLANTED_RATIO = 32  # of the peak to the lowest learning rate of "slanted_triangular"
Rate: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule


def _check_rate(rate: Rate) -> Rate:
    """Check a learning rate, and return it: a number as a float, a schedule unchanged."""
    if callable(rate):
        return rate
    require(
        is_number(rate, 0) and rate < math.inf, "learning_rate", "a finite number of at least 0, or a schedule", rate
    )
    return float(rate)


def _check_constants(arguments: Mapping[str, object], **constants: float) -> None:
    """Check the constants of an optimizer, and the gradient clipping limits in `arguments`."""
    for name, value in constants.items():
        require(is_number(value, 0) and value < math.inf, name, "a finite number of at least 0", value)
    for name in ("clipnorm", "clipvalue", "global_clipnorm"):
        if (limit := arguments.get(name)) is not None:
            require(is_number(limit, 0) and limit != 0, name, "a positive number or None", limit)


def _check_substrings(name: str, substrings: Any) -> None:
    """Check that an argument is a list of strings."""
    is_list = isinstance(substrings, Iterable) and not isinstance(substrings, str)
    if not (is_list and all(isinstance(substring, str) for substring in substrings)):
        raise TypeError(f"`{name}` must be a list of strings, got {substrings!r:.60}.")


class _Float32StateOptimizer(keras.optimizers.Optimizer):
    """Base class of optimizers that keep the moments of 16-bit weights in float32.

    In 16 bits, a second moment would be rounded to its old value, or in float16 to 0.
    """

    def add_variable(
        self, shape: Shape, initializer: Any = "zeros", dtype: Any = None, **kwargs: Any
    ) -> keras.Variable:
        """Create a variable of the optimizer, in float32 if `dtype` has 16 bits.

        Averages of weights (`use_ema`) keep `dtype`, since on TensorFlow Keras assigns them to the weights without a
        cast.
        """
        is_average = (kwargs.get("name") or "").endswith("_average")
        dtype = "float32" if dtype in _HALF_PRECISION and not is_average else dtype
        return super().add_variable(shape, initializer, dtype, **kwargs)


@keras.saving.register_keras_serializable(package="lmzoo")
class AdamW(_Float32StateOptimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019), and a built-in learning-rate schedule.

    The schedule multiplies `learning_rate`, which stays an ordinary variable: callbacks such as `ReduceLROnPlateau` can
    set it, and a second `fit` can start a new schedule without recompiling. On TensorFlow each weight is updated by one
    operation, `ResourceApplyAdam`; for models of 20 million weights or more the update is compiled with XLA. For
    weights in bfloat16 or float16, gradients are clipped and moments are kept in float32.

    Args:
        learning_rate: float, the peak learning rate; or a Keras schedule.
        weight_decay: float, coefficient of the weight decay.
        beta_1: float, decay of the first moment.
        beta_2: float, decay of the second moment.
        epsilon: float, added to the square root of the second moment.
        bias_correction: bool, whether to correct the moments for their start at 0; BERT's own code (Devlin et al.,
            2019) does not.
        exclude_from_decay: list of str; variables with one of these substrings in their paths get no weight decay.
        name: str, name of the optimizer.
        schedule: str, shape of the decay after the linear warm-up: "linear", "cosine", "inverse_square_root" (Vaswani
            et al., 2017) or "constant"; or "slanted_triangular" (Howard & Ruder, 2018), whose linear warm-up and decay
            never fall below a 32nd of the peak.
        layer_decay: float in (0, 1], ratio of a layer's learning rate to the rate of the layer above it: discriminative
            fine-tuning (Howard & Ruder, 2018, with 1 / 2.6; Clark et al., 2020, with 0.8 to 0.9). A task's head and
            pooler have the full rate, and its embeddings have the lowest. `compile` of a task reads the order of its
            layers; for other models, call `set_layers`.
        **kwargs: arguments of `keras.optimizers.Optimizer`, such as `global_clipnorm`.

    Raises:
        TypeError: If `exclude_from_decay` is not a list of strings.
        ValueError: If the learning rate or the weight decay is not a finite number of at least 0; if `epsilon` is not a
            finite number above 0; if a limit of gradient clipping is not above 0; if a beta is outside of [0, 1); if
            the schedule is unknown; or if `layer_decay` is not in (0, 1].

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
        exclude_from_decay: Sequence[str] = ("bias", "_norm"),
        name: str = "adamw",
        schedule: str = "linear",
        layer_decay: float = 1.0,
        **kwargs: Any,
    ) -> None:
        if schedule not in _DECAY_FACTORS:
            raise ValueError(f"`schedule` must be one of {', '.join(_DECAY_FACTORS)}, got {schedule!r}.")
        _check_constants(kwargs, weight_decay=weight_decay, epsilon=epsilon)
        require(epsilon > 0, "epsilon", "a positive number", epsilon)
        require(is_number(layer_decay, 0, 1) and layer_decay > 0, "layer_decay", "a number in (0, 1]", layer_decay)
        require_share("beta_1", beta_1)
        require_share("beta_2", beta_2)
        _check_substrings("exclude_from_decay", exclude_from_decay)
        super().__init__(learning_rate=_check_rate(learning_rate), name=name, **kwargs)
        self.decay = weight_decay
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self.exclude_from_decay = tuple(exclude_from_decay)
        self.schedule = schedule
        self.layer_decay = layer_decay
        self._layers: dict[int, int] = {}  # index of the layer, counted from the lowest, by the id of a variable
        self._unfreezing_steps: tuple[int, ...] = ()  # first step of each layer, or () if no layer is frozen
        self._layer_factors: list[Tensor | float] = []  # factors of the layers' learning rates; [] if they are equal
        self._undecayed_ids: set[int] = set()  # of the variables in `exclude_from_weight_decay`
        self._variable_ids: list[int] = []  # of the trainable variables
        self._paths: list[str] = []  # of the trainable variables
        self._num_layers = 0
        self._num_weights = 0
        self._compiled: Callable[[Sequence[Tensor | None]], None] | None = None
        self._rate: Tensor | float = 0.0
        self._step_sizes: tuple[Tensor | float, Tensor | float] = (0.0, 0.0)
        self._kernel: partial[None] | None = None

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the variables for the moments and the schedule."""
        if self.built:
            return
        self._variable_ids = [*map(id, variables)]
        self._paths = [variable.path for variable in variables]
        self._check_layers()
        super().build(variables)
        self._num_weights = sum(math.prod(variable.shape) for variable in variables)
        self._first, self._second = self.add_optimizer_variables(variables, ["first_moment", "second_moment"])
        self._decayed = [
            id(v) not in self._undecayed_ids and not any(substring in v.path for substring in self.exclude_from_decay)
            for v in variables
        ]
        # [first step, warm-up steps, total steps]; without warm-up or decay these are 0.
        self._schedule = self.add_variable(shape=(3,), dtype="float32", name="schedule")

    @property
    def weight_decay(self) -> None:
        """Always None, since Keras would add a second weight decay, of all variables; `decay` is the coefficient."""
        return None

    @weight_decay.setter
    def weight_decay(self, value: float | None) -> None:
        if value is not None:  # Keras' constructor sets None
            raise AttributeError(
                f"{type(self).__name__} has its weight decay in the attribute `decay`. Set `decay` instead of "
                "`weight_decay`, before `compile`."
            )

    def exclude_from_weight_decay(
        self, var_list: Sequence[keras.Variable] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Exclude variables from the weight decay, in addition to `exclude_from_decay`.

        Args:
            var_list: variables. They are not part of the optimizer's configuration, so this exclusion is lost in files
                of a model and when `Task.quantize` makes a new optimizer.
            var_names: parts of the paths of variables, which extend `exclude_from_decay`.

        Raises:
            TypeError: If `var_names` is not a list of strings.
            ValueError: If the optimizer is already built.

        Example:

        ```python
        from lmzoo.training import AdamW

        optimizer = AdamW(3e-4)
        optimizer.exclude_from_weight_decay(var_names=["embedding"])
        ```
        """
        if self.built:
            raise ValueError(
                "The optimizer is built, which fixes the variables without weight decay. Call "
                "`exclude_from_weight_decay` before it is built, such as before `compile`."
            )
        _check_substrings("var_names", var_names or ())
        self._undecayed_ids.update(map(id, var_list or ()))
        self.exclude_from_decay = (*self.exclude_from_decay, *(var_names or ()))

    def forget_compiled(self) -> None:
        """Drop the compiled update, which holds the settings of the time when it was compiled."""
        self._compiled = None

    def set_layers(self, layers: Sequence[Sequence[keras.Variable]], unfreezing_steps: Sequence[int] = ()) -> None:
        """Set the order of the model's layers for `layer_decay`, and freeze layers for the first steps of a schedule.

        A frozen variable gets no update, while its moments follow the gradients. Functions that were compiled
        with the optimizer earlier must be compiled again.

        Args:
            layers: the variables of each layer, from the lowest layer to the head; `lmzoo.training.layers_of` returns
                the layers of a task.
            unfreezing_steps: ints, for each layer the number of steps for which it is frozen, counted from the start of
                the schedule; by default no layer is frozen.

        Raises:
            ValueError: If `unfreezing_steps` does not hold one non-negative integer per layer, or if the optimizer is
                already built and updates a variable that is in none of the layers.

        Example:

        ```python
        import keras
        from lmzoo.training import AdamW

        table, head = keras.Variable([1.0]), keras.Variable([1.0])
        optimizer = AdamW(0.1, layer_decay=0.5)
        optimizer.set_layers([[table], [head]], unfreezing_steps=[10, 0])  # trains the head alone for ten steps
        ```
        """
        has_one_per_layer = not unfreezing_steps or len(unfreezing_steps) == len(layers)
        is_valid = has_one_per_layer and all(is_integer(step, 0) for step in unfreezing_steps)
        allowed_steps = f"{len(layers)} integers of at least 0, one for each layer"
        require(is_valid, "unfreezing_steps", allowed_steps, unfreezing_steps)
        self._layers = {id(variable): index for index, layer in enumerate(layers) for variable in layer}
        self._unfreezing_steps = tuple(unfreezing_steps)
        self._num_layers = len(layers)
        self.forget_compiled()
        if self.built:
            self._check_layers()

    @property
    def freezes_layers(self) -> bool:
        """Whether layers are frozen at the start of a schedule; see `set_layers`."""
        return any(self._unfreezing_steps)

    def _check_layers(self) -> None:
        """Check that the layers of all variables are known, if learning rates depend on layers.

        Raises:
            ValueError: If the layer of a variable is unknown.
        """
        if self.layer_decay == 1 and not self._layers:
            return
        named_ids = zip(self._paths, self._variable_ids, strict=True)
        if unknown_paths := [path for path, variable_id in named_ids if variable_id not in self._layers]:
            raise ValueError(
                f"The optimizer does not know the layer of {unknown_paths[0]!r}, whose learning rate depends on it. "
                "For a task, call `compile` after changing its layers; for another model, call `optimizer.set_layers`."
            )

    def start_schedule(self, warmup_steps: int = 0, total_steps: int = 0, elapsed: int = 0) -> None:
        """Start a new warm-up and decay at the current iteration.

        Args:
            warmup_steps: int, number of steps of the linear warm-up from 0 to `learning_rate`.
            total_steps: int, number of steps after which the decay ends; 0 for a constant learning rate after the
                warm-up.
            elapsed: int, number of steps of this schedule done before training was resumed.

        Raises:
            ValueError: If the optimizer is not built, or a number of steps is negative or not an integer.
        """
        for name, value in (("warmup_steps", warmup_steps), ("total_steps", total_steps), ("elapsed", elapsed)):
            require(is_integer(value, 0), name, "an integer of at least 0", value)
        if not self.built:
            raise ValueError("Build the optimizer (`optimizer.build(model.trainable_variables)`) before its schedule.")
        start = int(ops.convert_to_numpy(self.iterations)) - elapsed
        self._schedule.assign([float(start), float(warmup_steps), float(total_steps)])

    @property
    def has_ended(self) -> bool:
        """Whether the schedule has ended, and the learning rate is 0 from now on. The optimizer must be built."""
        _, total_steps, elapsed = self.schedule_steps
        return self.schedule in _SCHEDULES_TO_ZERO and 0 < total_steps <= elapsed

    @property
    def schedule_steps(self) -> tuple[int, int, int]:
        """The arguments with which `start_schedule` continues the current schedule: warm-up, total and elapsed steps.

        The optimizer must be built.
        """
        start, warmup_steps, total_steps = ops.convert_to_numpy(self._schedule).astype("int64").tolist()
        elapsed = int(ops.convert_to_numpy(self.iterations)) - start
        return warmup_steps, total_steps, max(0, elapsed)

    def _factor(self) -> Tensor:
        """Return the factor by which the schedule multiplies the learning rate at this iteration, float32 ()."""
        schedule = ops.convert_to_tensor(self._schedule)
        start = schedule[0]
        warmup_steps = schedule[1]
        total_steps = schedule[2]
        step = ops.cast(self.iterations, "float32") - start
        warmup_factor = ops.where(warmup_steps > 0, ops.minimum(1.0, (step + 1) / ops.maximum(warmup_steps, 1.0)), 1.0)
        if self.schedule == "slanted_triangular":
            step = step + 1  # in both parts, the paper's t
        decay_fraction = ops.clip((total_steps - step) / ops.maximum(total_steps - warmup_steps, 1.0), 0.0, 1.0)
        # The whole decay remains until the warm-up ends, also in a run that ends with it.
        remaining_fraction = ops.where(step <= warmup_steps, 1.0, decay_fraction)
        peak_step = ops.maximum(warmup_steps, 1.0)
        warmup_ratio = peak_step / ops.maximum(step + 1, peak_step)
        factor = warmup_factor * ops.where(
            total_steps > 0, _DECAY_FACTORS[self.schedule](remaining_fraction, warmup_ratio), 1.0
        )
        if self.schedule == "slanted_triangular":
            return (1 + factor * (_SLANTED_RATIO - 1)) / _SLANTED_RATIO
        return factor

    def _compute_layer_factors(self) -> list[Tensor | float]:
        """Return the factor of each layer's learning rate at this iteration, or [] if no layers are set."""
        if not self._layers:
            return []
        factors: list[Tensor | float] = [
            self.layer_decay ** (self._num_layers - 1 - index) for index in range(self._num_layers)
        ]
        if not self.freezes_layers:
            return factors
        step = ops.cast(self.iterations, "float32") - ops.convert_to_tensor(self._schedule)[0]
        return [
            ops.where(step >= first_step, factor, 0.0)
            for first_step, factor in zip(self._unfreezing_steps, factors, strict=True)
        ]

    def apply(self, grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        """Clip the gradients and update the variables."""
        dense_grads = _prepare_gradients(grads)
        if keras.backend.backend() != "tensorflow":
            self._update(dense_grads, trainable_variables)
            return
        import tensorflow as tf

        all_variables = trainable_variables is None or [*map(id, trainable_variables)] == self._variable_ids
        is_large = self._num_weights >= _MIN_WEIGHTS_TO_COMPILE
        if not (all_variables and is_large and tf.inside_function()) or tf.distribute.has_strategy():
            self._update(dense_grads, trainable_variables)
            return
        if self._compiled is None:
            # Updates are bound by memory bandwidth: a compiled update reads and writes each weight and moment once. Its
            # shapes depend only on the weights, so it is compiled once, whatever the shapes of batches.
            self._compiled = tf.function(self._update, jit_compile=True, autograph=False)
        self._compiled(dense_grads)

    def _update(
        self, grads: Sequence[Tensor | None], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> None:
        if not self.built:
            with keras.name_scope(self.name):
                self.build(list(trainable_variables or ()))
        self._rate = rate = ops.cast(self.learning_rate, "float32") * self._factor()
        step = ops.cast(self.iterations + 1, "float32")
        # 1 - beta ** step; computed directly in float32 it loses digits, since the power is close to 1.
        correction_1 = -ops.expm1(step * math.log(self.beta_1)) if self.bias_correction and self.beta_1 else 1.0
        correction_2 = -ops.expm1(step * math.log(self.beta_2)) if self.bias_correction and self.beta_2 else 1.0
        # Computed once: they are equal for all variables.
        self._step_sizes = (rate * ops.sqrt(correction_2) / correction_1, rate * self.decay)
        self._layer_factors = self._compute_layer_factors()
        self._kernel = self._make_tensorflow_kernel(self._step_sizes[0])
        super().apply(grads, trainable_variables)

    def _make_tensorflow_kernel(self, scale: Tensor | float) -> partial[None] | None:
        """Return TensorFlow's fused Adam update of a float32 weight, or None where it is unavailable.

        Args:
            scale: float (), learning rate multiplied by the schedule and the bias correction.
        """
        if keras.backend.backend() != "tensorflow" or type(self).scaled is not AdamW.scaled:
            return None
        import tensorflow as tf

        if tf.distribute.has_strategy():
            return None
        # The kernel computes 1 - beta in float32, where 1 - 0.999 is 0.00099998713. The moments are smaller by the same
        # ratio, for which the learning rate and epsilon compensate.
        first_moment_factor = float(1 - np.float32(self.beta_1)) / (1 - self.beta_1)
        second_moment_factor = math.sqrt(float(1 - np.float32(self.beta_2)) / (1 - self.beta_2))
        constants = {
            "lr": scale * second_moment_factor / first_moment_factor,
            "beta1": self.beta_1,
            "beta2": self.beta_2,
            "beta1_power": 0.0,  # `scale` holds the bias correction already
            "beta2_power": 0.0,
            "epsilon": self.epsilon * second_moment_factor,
        }
        return partial(
            tf.raw_ops.ResourceApplyAdam, **{name: tf.cast(value, tf.float32) for name, value in constants.items()}
        )

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        """Update one variable and its moments."""
        index = self._get_variable_index(variable)  # private, but part of Keras' documentation of `Optimizer`
        first_moment = self._first[index]
        second_moment = self._second[index]
        dtype = first_moment.dtype
        step_size, decay_size = (ops.cast(size, dtype) for size in self._step_sizes)
        layer_factor = None
        if self._layer_factors:
            layer_factor = ops.cast(self._layer_factors[self._layers[self._variable_ids[index]]], dtype)
        gradient = ops.cast(gradient, dtype)
        has_decay = self._decayed[index] and self.decay
        if self._kernel and variable.dtype == "float32":
            if has_decay:
                self.assign_sub(
                    variable, (decay_size if layer_factor is None else decay_size * layer_factor) * variable
                )
            kernel_arguments = {
                "var": variable.handle,
                "m": first_moment.value.handle,
                "v": second_moment.value.handle,
                "grad": gradient,
            }
            if layer_factor is not None:
                kernel_arguments["lr"] = self._kernel.keywords["lr"] * layer_factor
            self._kernel(**kernel_arguments)
            return
        self.assign_add(first_moment, (gradient - first_moment) * (1 - self.beta_1))
        self.assign_add(second_moment, (ops.square(gradient) - second_moment) * (1 - self.beta_2))
        change = step_size * first_moment / (ops.sqrt(second_moment) + self.epsilon)
        if has_decay:
            change = change + decay_size * ops.cast(variable, dtype)
        change = self.scaled(change, variable, index)
        change = change if layer_factor is None else layer_factor * change
        self.assign_sub(variable, ops.cast(change, variable.dtype))

    def scaled(self, change: Tensor, variable: keras.Variable, index: int) -> Tensor:
        """Return the value to subtract from a variable; subclasses may scale it.

        Args:
            change: float, of the shape of `variable`, the update multiplied by the learning rate; in float32 if the
                variable has 16 bits.
            variable: the variable to update.
            index: int, position of the variable in the list passed to `build`.
        """
        return change

    def get_config(self) -> dict[str, Any]:
        settings = {
            "weight_decay": self.decay,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "bias_correction": self.bias_correction,
            "exclude_from_decay": list(self.exclude_from_decay),
            "schedule": self.schedule,
            "layer_decay": self.layer_decay,
        }
        return as_python_values({**super().get_config(), **settings})


@keras.saving.register_keras_serializable(package="lmzoo")
class LAMB(AdamW):
    """Adam with steps scaled to the norm of each weight (You et al., 2020), for very large batches.

    A weight `p` becomes `p - rate * |p| / |u| * u`, where `u` is the update of `AdamW` including weight decay. The
    ratio of the norms is 1 if either norm is 0, and for variables that `exclude_from_decay` names. The defaults match
    ALBERT's code (Lan et al., 2020, section A.1 and `optimization.py`), without bias correction.
    `keras.optimizers.Lamb` always applies the correction, and leaves the weight decay out of the norm.

    Args:
        learning_rate: float, the peak learning rate; or a Keras schedule.
        bias_correction: bool, whether to correct the moments for their start at 0, as in the paper.
        name: str, name of the optimizer.
        **kwargs: arguments of `AdamW`.

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
        """Return `change`, scaled by the ratio of the weight's norm to the update's if the weight has weight decay."""
        if not self._decayed[index]:
            return change
        weight_norm, change_norm = (ops.sqrt(ops.sum(ops.square(ops.cast(x, "float32")))) for x in (variable, change))
        # The norm of `change` is the learning rate times the norm of `u`; if it is 0, the ratio does not matter.
        ratio = ops.where(weight_norm > 0, self._rate * ops.divide_no_nan(weight_norm, change_norm), 1.0)
        return ops.cast(ratio, change.dtype) * change


@keras.saving.register_keras_serializable(package="lmzoo")
class Adagrad(_Float32StateOptimizer, keras.optimizers.Adagrad):
    """Adagrad (Duchi et al., 2011) with the constants of bilm-tf, ELMo's training code (Peters et al., 2018).

    The accumulator `a` of a weight `p` with gradient `g` becomes `a + g * g`, then `p` becomes `p - rate * g /
    sqrt(a)`. In bilm-tf, the loss is `UnrolledLoss`, the mean loss per word multiplied by the number of steps of a
    sequence. For weights in bfloat16 or float16, `a` is float32.

    Args:
        learning_rate: float, the learning rate; or a Keras schedule.
        initial_accumulator_value: float, initial value of `a`.
        global_clipnorm: float, maximum global norm of the gradients; or None.
        **kwargs: arguments of `keras.optimizers.Adagrad`.

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
        rate = _check_rate(learning_rate)
        # bilm-tf adds no epsilon.
        kwargs = {"epsilon": 0.0, **kwargs, "global_clipnorm": global_clipnorm}
        _check_constants(kwargs, initial_accumulator_value=initial_accumulator_value, epsilon=kwargs["epsilon"])
        if initial_accumulator_value == kwargs["epsilon"] == 0:
            raise ValueError(
                "`initial_accumulator_value` and `epsilon` are both 0: weights without a gradient become NaN."
            )
        super().__init__(rate, initial_accumulator_value, **kwargs)

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the accumulators."""
        if self.built:
            return
        keras.optimizers.Optimizer.build(self, variables)
        initializer = keras.initializers.Constant(self.initial_accumulator_value)
        self._sums = self.add_optimizer_variables(variables, "accumulator", initializer)

    def apply(self, grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        """Clip the gradients and update the variables."""
        super().apply(_prepare_gradients(grads), trainable_variables)

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        """Update one variable and its accumulator, as Keras does, but in the accumulator's dtype."""
        accumulator = self._sums[self._get_variable_index(variable)]
        gradient = ops.cast(gradient, accumulator.dtype)
        self.assign_add(accumulator, ops.square(gradient))
        scaled_gradient = ops.multiply(ops.cast(learning_rate, accumulator.dtype), gradient)
        change = ops.divide(scaled_gradient, ops.sqrt(ops.add(accumulator, self.epsilon)))
        self.assign_sub(variable, ops.cast(change, variable.dtype))


def _prepare_gradients(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """Return the gradients as dense tensors of one dtype of at least 32 bits, with None for missing gradients.

    On TensorFlow, the norm of sparse gradients with repeated rows would be wrong, and the global norm needs one dtype.
    In float16, the squares of gradients overflow or become 0.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        grads = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]
    dtypes = {keras.backend.standardize_dtype(g.dtype) for g in grads if g is not None}
    if len(dtypes) == 1 and dtypes.isdisjoint(_HALF_PRECISION):
        return grads
    return [None if g is None else ops.cast(g, "float32") for g in grads]
