"""How a task is compiled: with defaults for everything, and a schedule that fits the length of the training."""

from __future__ import annotations

import math
import threading
import warnings
from contextlib import AbstractContextManager
from typing import Any, Literal, Self, TypeAlias

import keras

from lmzoo.common.log_filters import without_log_lines
from lmzoo.common.tensor_types import Tensor
from lmzoo.families.backbone import Backbone
from lmzoo.families.named_inputs import NamedInputsModel
from lmzoo.training import AdamW, FineTuningRecipe
from lmzoo.training.fine_tuning import usual_recipe
from lmzoo.training.losses import loss_of_logits

_COMPILING = threading.RLock()  # several threads may ask a new task for predictions
_WARMUP_OF_UNKNOWN = 100  # steps, if the length of the training is not known

# A loss as `keras.Model.compile` takes it, or a dict of them by output.
Losses: TypeAlias = Any
# Metrics as `keras.Model.compile` takes them: a list, or a dict of lists by output.
Metrics: TypeAlias = list[Any] | dict[str, Any]


class _WhenCompiled:
    """An attribute that `compile` sets. Reading it first compiles a task that awaits its default compilation."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, task: CompiledTask | None, owner: type) -> Any:
        if task is None:
            return self
        task.compile_by_default()
        return task.__dict__.get(self.name)

    def __set__(self, task: CompiledTask, value: Any) -> None:
        task.__dict__[self.name] = value


class CompiledTask(NamedInputsModel):
    """What is trained, and how: the part of `lmzoo.models.Task` behind `compile`.

    A task is compiled with its defaults when that is first needed, unless it was loaded with `compile=False`.
    """

    backbone: Backbone
    head_kind: str
    uses_pooler: bool = True

    compiled = _WhenCompiled()
    loss = _WhenCompiled()
    optimizer = _WhenCompiled()

    _compiles_itself = False  # with the defaults: true from the end of construction until `compile` is called

    def compile_by_default(self) -> None:
        """Compiles the task with its defaults, unless it has been compiled or was loaded with `compile=False`."""
        with _COMPILING:
            if self._compiles_itself:
                self.compile()

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Tensor:
        """See `keras.Model.compute_loss`; takes the default loss if the task has not been compiled."""
        self.compile_by_default()
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def default_optimizer(self) -> keras.optimizers.Optimizer:
        """The optimizer that `compile` takes for `"auto"`."""
        return AdamW(self.recipe.learning_rate, global_clipnorm=1.0)

    @property
    def recipe(self) -> FineTuningRecipe:
        """The settings for fine-tuning that the backbone recommends for this kind of head, or the usual ones."""
        found = self.backbone.fine_tuning.get(self.head_kind) or self.backbone.usual_recipes.get(self.head_kind)
        return found or usual_recipe(self.backbone.config.hidden_dim)

    def default_loss(self) -> Losses:
        """The loss that `compile` takes for `"auto"`."""
        raise NotImplementedError

    def default_loss_weights(self) -> dict[str, float] | None:
        """Return the weights of the losses that `compile` takes for `"auto"`; None if all count the same."""
        return None

    def default_metrics(self) -> Metrics:
        """The metrics that `compile` takes for `"auto"`: a list, or a dict of lists if there are several outputs."""
        return []

    # A loss that does not reach a weight cannot train it, and Keras would warn of the missing gradients in every `fit`.
    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """Weights that training updates, without `unused_variables`."""
        return self._split_unused(super().trainable_variables)[0]

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        """All other variables, `unused_variables` included."""
        return super().non_trainable_variables + self._split_unused(super().trainable_variables)[1]

    trainable_weights = trainable_variables

    @property
    def non_trainable_weights(self) -> list[keras.Variable]:
        """All other weights, `unused_variables` included, but neither seeds nor metrics."""
        return super().non_trainable_weights + self._split_unused(super().trainable_weights)[1]

    def _split_unused(self, variables: list[keras.Variable]) -> tuple[list[keras.Variable], list[keras.Variable]]:
        """The variables that are used, and those that are not."""
        unused = {id(v) for v in self.unused_variables}
        return [v for v in variables if id(v) not in unused], [v for v in variables if id(v) in unused]

    @property
    def unused_variables(self) -> list[keras.Variable]:
        """Variables that the task's loss does not reach: those of a pooler that it does not use."""
        pooler = None if self.uses_pooler else self.backbone.pooler
        return [] if pooler is None else pooler.variables

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer = "auto",
        loss: Losses = "auto",
        metrics: Metrics | Literal["auto"] | None = "auto",
        weighted_metrics: Metrics | None = None,
        **kwargs: Any,
    ) -> None:
        """Configures training as `keras.Model.compile` does; `"auto"` takes the task's default.

        The default optimizer is `lmzoo.training.AdamW` with gradients clipped to norm 1, a warm-up over the first tenth
        of a `fit` and a linear decay to its end. The highest rate is that of `recipe`: the preset's for this kind of
        head or, if it recommends none, 5e-5 · 768 / H, which is the value of Devlin et al. (2019) for a width of 768,
        and higher for narrower models.

        Args:
            optimizer: `"auto"` or a Keras optimizer.
            loss: `"auto"` or a Keras loss. The model's outputs are logits, and so a name such as
                `"sparse_categorical_crossentropy"` stands for the loss of logits.
            metrics: `"auto"` or a list of Keras metrics. They take the weights of the examples into account. For a task
                with several outputs, `loss` is a dict and `metrics` a dict of lists.
            weighted_metrics: more metrics.
            **kwargs: of `keras.Model.compile`, such as `jit_compile`.

        Raises:
            TypeError: for metrics that are neither a list nor a dict of lists.
            ValueError: for a cross-entropy of probabilities; for an optimizer or metrics that were made outside of the
                scope of the model's `tf.distribute.Strategy`.
        """
        waits, self._compiles_itself = self._compiles_itself, False
        try:
            with self.device_scope():
                if isinstance(optimizer, str) and optimizer == "auto":
                    optimizer = self.default_optimizer()
                optimizer = keras.optimizers.get(optimizer)
                if isinstance(loss, str) and loss == "auto":
                    loss, weights = self.default_loss(), self.default_loss_weights()
                    kwargs = {**({} if weights is None else {"loss_weights": weights}), **kwargs}
                if isinstance(metrics, str) and metrics == "auto":
                    metrics = self.default_metrics()
                weighted_metrics = _joined(metrics, weighted_metrics)
                parts = [optimizer, *keras.tree.flatten(weighted_metrics)]
                self.check_scope(v for part in parts if hasattr(part, "variables") for v in part.variables)
                super().compile(
                    optimizer=optimizer, loss=loss_of_logits(loss), weighted_metrics=weighted_metrics, **kwargs
                )
        except Exception:
            self._compiles_itself = waits  # as if nobody had called it
            raise
        self.backbone.set_compiled_by_xla(self.jit_compile)
        self.forget_compiled()

    def forget_compiled(self) -> None:
        """Drops compiled functions, which hold the weights and settings of the time when they were made."""
        self.train_function = self.test_function = self.predict_function = None

    def quantize(self, mode: str = "int8", **kwargs: Any) -> None:
        """Quantises the backbone's weights, for smaller files and predictions; the head stays as it is.

        Args:
            mode: as in `keras.Model.quantize`.
            **kwargs: of `keras.Model.quantize`.
        """
        config = self.get_compile_config()
        with self.device_scope(), warnings.catch_warnings():
            # Dropout and other layers without weights have nothing to quantise.
            warnings.filterwarnings("ignore", "Layer .* does not have a `quantize`")
            self.backbone.quantize(mode, **kwargs)
        self.forget_compiled()  # and the optimizer: both know the old weights
        if config is not None:
            config["optimizer"]["built"] = False
            self.compile_from_config(config)

    def get_compile_config(self) -> dict[str, Any] | None:
        """Return the arguments of `compile`, or None for a task that is not compiled.

        The optimizer's says whether it has state yet. It is not an argument of its own, since any model can be compiled
        with these, such as that of `keras.models.clone_model`.
        """
        config = super().get_compile_config()
        if not config:
            return config
        return {**config, "optimizer": {**config["optimizer"], "built": self.optimizer.built}}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        """Builds a task from `get_config`'s output without compiling it: Keras does that if the file says so."""
        task = super().from_config(config, custom_objects)
        task._compiles_itself = False
        return task

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as `get_compile_config` says and creates the optimizer's state, ready to be loaded."""
        optimizer = config.get("optimizer")
        built = isinstance(optimizer, dict) and optimizer.get("built", False)
        built = config.get("optimizer_built", built)  # where older files have it
        with self.device_scope():
            config = keras.saving.deserialize_keras_object(config)
        config.pop("optimizer_built", None)
        self.compile(**config)
        if built:
            self.build_optimizer()

    def build_optimizer(self) -> None:
        """Creates the optimizer's state, unless it has been created."""
        if not self.optimizer.built:
            with self.device_scope():
                self.optimizer.build(self.trainable_variables)

    def start_schedule(
        self, steps: int | None, epochs: int, done: int, callbacks: list[keras.callbacks.Callback]
    ) -> None:
        """Fits the default schedule to the coming training, from the current iteration on.

        Args:
            steps: int, steps of an epoch; None if unknown.
            epochs: int, epoch to stop at.
            done: int, steps of the training that are done.
            callbacks: those of `fit`, of which some set the learning rate.
        """
        optimizer = getattr(
            self.optimizer, "inner_optimizer", self.optimizer
        )  # Keras wraps it to scale the loss in float16
        if not isinstance(optimizer, AdamW):
            return
        scheduler = any(isinstance(c, keras.callbacks.LearningRateScheduler) for c in callbacks)
        if scheduler or not hasattr(optimizer.learning_rate, "assign"):
            optimizer.start_schedule()  # the callback, or a Keras schedule, sets the rate
        elif steps is None:
            optimizer.start_schedule(warmup_steps=_WARMUP_OF_UNKNOWN)
        else:
            batches = optimizer.gradient_accumulation_steps or 1  # per update
            total, elapsed = steps * epochs // batches, done // batches
            plateau = any(isinstance(c, keras.callbacks.ReduceLROnPlateau) for c in callbacks)
            optimizer.start_schedule(math.ceil(total / 10), 0 if plateau else total, elapsed)


def _joined(metrics: Any, more: Any) -> Metrics:
    """Both lists of metrics, or both dicts of lists, as one."""
    for given in (metrics, more):
        if not isinstance(given, (list, tuple, dict, type(None))):
            raise TypeError(f'`metrics` must be a list, such as ["accuracy"], or a dict of lists, got {given!r:.60}.')
    if isinstance(metrics, dict) or isinstance(more, dict):
        parts = [metrics or {}, more or {}]
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: [m for part in parts for m in keras.tree.flatten(part.get(name, []))] for name in names}
    return [*(metrics or []), *(more or [])]


def expected_retracing() -> AbstractContextManager[None]:
    """Keeps TensorFlow from warning that a function is traced once for each width of the batches."""
    return without_log_lines("triggered tf.function retracing")
