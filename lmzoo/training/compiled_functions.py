"""Compiled functions and the optimizer's state of a task, which must fit its weights and the settings of `compile`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from lmzoo.training.layer_order import layers_of
from lmzoo.training.optimizers import AdamW
from lmzoo.training.training_run import inner_optimizer

NO_OPTIMIZER = "This model was loaded without its optimizer. Call `compile` before you train it."


@dataclass(frozen=True)
class _CompileArguments:
    """Arguments of `keras.Model.compile`, which Keras would track as parts of the model if they were in a dict.

    Attributes:
        optimizer: Keras optimizer, or None.
        settings: the other arguments by name, as they were passed.
    """

    optimizer: Any
    settings: Mapping[str, Any]


class FollowsWeights(keras.Model):
    """Model on a backbone whose compiled functions are dropped when its weights are replaced.

    Weights are replaced or added by methods of the backbone such as `quantize` and `load_lora_weights`, of which Keras
    does not notify the model.
    """

    backbone: Any
    _compile_arguments: _CompileArguments | None = None
    _compiled_parts: dict[str, Any]
    _trained_ids: tuple[int, ...] | None = None  # ids of the variables for which the optimizer was built
    _weight_ids: tuple[int, ...] | None = None  # ids of the weights when functions were last used

    # === Compile ===

    def compile(self, optimizer: Any = "rmsprop", loss: Any = None, metrics: Any = None, **kwargs: Any) -> None:
        """Configure the model for training; see `keras.Model.compile`."""
        previous_optimizer = inner_optimizer(getattr(self, "optimizer", None))
        optimizer = keras.optimizers.get(optimizer)
        super().compile(optimizer, loss, metrics=metrics, **kwargs)
        self._compile_arguments = _CompileArguments(optimizer, {"loss": loss, "metrics": metrics, **kwargs})
        prepare_optimizer(self.optimizer, self)
        if inner_optimizer(self.optimizer) is not previous_optimizer:
            self._trained_ids = None
        self.backbone.set_compiled_by_xla(self.jit_compile)
        self.forget_compiled()

    def compile_again(self) -> None:
        """Compile a compiled model with the same arguments and a new optimizer of the same settings."""
        if self._compile_arguments is None or not self.compiled:
            return
        optimizer = self._compile_arguments.optimizer
        if optimizer is not None:
            optimizer = type(optimizer).from_config(optimizer.get_config())
        self.compile(optimizer, **self._compile_arguments.settings)

    def get_compile_config(self) -> dict[str, Any] | None:
        """Return the arguments of `compile`, or an empty dict for a task that is not compiled.

        `jit_compile` is "auto" unless the user chose a value, so that each backend and machine chooses its own. The
        optimizer's entry also records whether the optimizer has state yet. A separate entry would prevent other models,
        such as one from `keras.models.clone_model`, from being compiled with the result.
        """
        config = super().get_compile_config()
        if not config or self._compile_arguments is None:
            return config
        config = {**config, "jit_compile": self._compile_arguments.settings.get("jit_compile", "auto")}
        if self.optimizer is None:
            return config
        return {**config, "optimizer": {**config["optimizer"], "built": self.optimizer.built}}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile with the output of `get_compile_config`, and build the optimizer if it was built at that time."""
        optimizer = config.get("optimizer")
        is_built = isinstance(optimizer, dict) and optimizer.get("built", False)
        is_built = config.get("optimizer_built", is_built)  # the key in older files
        config = keras.saving.deserialize_keras_object(config)
        config.pop("optimizer_built", None)
        self.compile(**config)
        if is_built:
            self.build_optimizer()

    def build_optimizer(self) -> None:
        """Create the optimizer's state if it does not exist yet.

        Raises:
            ValueError: If the model was loaded without its optimizer, or if the set of trainable weights has changed
                since the optimizer was built: TensorFlow's compiled steps would continue to train the earlier set, and
                the optimizer has no state for other weights.
        """
        if self.optimizer is None:
            raise ValueError(NO_OPTIMIZER)
        trained_ids = tuple(map(id, self.trainable_variables))
        if self._trained_ids not in (None, trained_ids):
            raise ValueError(
                "The trainable weights have changed since training began, as after `enable_lora` or setting "
                "`trainable`, and the optimizer was built for the earlier ones. Pass a new optimizer to `compile`, or "
                "none, before you train again."
            )
        self._trained_ids = trained_ids
        if self.optimizer.built:
            return
        # A strategy of TensorFlow creates variables in its scope only; `fit` may be called outside of it.
        on_tensorflow = keras.backend.backend() == "tensorflow"
        with self.distribute_strategy.scope() if on_tensorflow else contextlib.nullcontext():
            self.optimizer.build(self.trainable_variables)

    # === Compiled functions ===

    def forget_compiled(self) -> None:
        """Drop the compiled functions, which hold outdated weights and settings."""
        self.train_function = self.test_function = self.predict_function = None
        self._compiled_parts = {}

    @property
    def compiled_parts(self) -> dict[str, Any]:
        """Further models and loops that are compiled for the current weights, by name; filled on first use."""
        self.prepare_functions()
        return self._compiled_parts

    def prepare_functions(self) -> None:
        """Drop functions that were compiled for other weights, and tell the backbone whether XLA compiles new ones."""
        weight_ids = tuple(map(id, self.weights))
        if self._weight_ids not in (None, weight_ids):
            self.forget_compiled()
        self._weight_ids = weight_ids
        # Each time, since several models may share the backbone.
        self.backbone.set_compiled_by_xla(self.jit_compile)

    def make_train_function(self, force: bool = False) -> Any:
        """Make the training function for the current weights if it does not exist; Keras calls this before training."""
        self.prepare_functions()
        return super().make_train_function(force)

    def make_test_function(self, force: bool = False) -> Any:
        """Make the evaluation function for the current weights if it does not exist, like `make_train_function`."""
        self.prepare_functions()
        return super().make_test_function(force)

    def make_predict_function(self, force: bool = False) -> Any:
        """Make the prediction function for the current weights if it does not exist, like `make_train_function`."""
        self.prepare_functions()
        return super().make_predict_function(force)


def prepare_optimizer(optimizer: Any, model: Any) -> None:
    """Give an `AdamW` the order of a model's layers, if it needs the order, and drop its compiled update.

    Args:
        optimizer: optimizer of any class, or None.
        model: a task, or another model with a `backbone`.
    """
    optimizer = inner_optimizer(optimizer)
    if not isinstance(optimizer, AdamW):
        return
    optimizer.forget_compiled()
    if optimizer.layer_decay != 1:
        optimizer.set_layers(layers_of(model))
