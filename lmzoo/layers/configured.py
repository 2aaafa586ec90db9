"""Base class of layers that keep their constructor arguments as attributes."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Mapping
from typing import Any, Self

import keras

from lmzoo.layers.dropout import Dropout
from lmzoo.layers.sublayers import get_quantizations, is_quantized, restore_quantizations, sublayers


class ConfiguredLayer(keras.layers.Layer):
    """Base class of layers that are serialized from their attributes, one per constructor argument.

    A dropout rate may be stored as a `Dropout` layer. Arguments may also be layers, lists of layers, and dataclasses.
    The constructor must also accept dataclasses as dicts. A `build` method that creates layers calls
    `restore_created_layers` at its end.
    """

    missing_quantizations: tuple[Mapping[str, Any], ...] = ()  # of layers that `build` will create

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments, with layers and dataclasses serialized.

        Low-rank updates are left out, with a warning, except in quantized layers.
        """
        if any(getattr(layer, "lora_enabled", False) and not is_quantized(layer) for layer in sublayers(self)):
            warnings.warn(
                "Keras copies layers without LoRA: a clone has no updates, and a saved model has them added to its "
                "weights. `task.copy_with()` copies a task with its updates added.",
                stacklevel=2,
            )
        arguments = {name: _serialize(getattr(self, name)) for name in list_constructor_arguments(type(self))}
        quantizations = get_quantizations(self)
        return {**super().get_config(), **arguments, **({"quantized": quantizations} if quantizations else {})}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build the layer from the output of `get_config`, including any layers among its arguments."""
        config = dict(config)
        quantizations = config.pop("quantized", ())
        layer = super().from_config({name: _deserialize(value) for name, value in config.items()})
        layer.missing_quantizations = tuple(restore_quantizations(layer, quantizations))
        return layer

    def restore_created_layers(self) -> None:
        """Prepare the layers that `build` created for their stored weights, which may be quantized."""
        self.missing_quantizations = tuple(restore_quantizations(self, self.missing_quantizations))


def _serialize(value: Any) -> Any:
    """Convert an attribute to a form that Keras can save: a dropout layer to its rate, other objects to dicts."""
    if isinstance(value, Dropout):
        return value.rate
    if isinstance(value, keras.layers.Layer):
        return keras.saving.serialize_keras_object(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return [_serialize(item) for item in value] if isinstance(value, list) else value


def _deserialize(value: Any) -> Any:
    """Restore the layers in a constructor argument that `_serialize` returned."""
    if isinstance(value, list):
        return [_deserialize(item) for item in value]
    is_object = isinstance(value, dict) and "class_name" in value
    return keras.saving.deserialize_keras_object(value) if is_object else value


def list_constructor_arguments(cls: type) -> list[str]:
    """Return the names of a class's constructor arguments, including arguments of lmzoo bases passed by `**kwargs`."""
    names: list[str] = []
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == "keras":
            break
        if "__init__" in vars(base):
            kinds = {p.name: p.kind for p in inspect.signature(base).parameters.values()}
            variadic_kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            names += [name for name, kind in kinds.items() if kind not in variadic_kinds]
            if inspect.Parameter.VAR_KEYWORD not in kinds.values():
                break
    return list(dict.fromkeys(names))
