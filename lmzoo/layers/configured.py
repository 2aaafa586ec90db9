"""The base of layers whose constructor's arguments are their attributes."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Self

import keras

from lmzoo.layers.dropout import Dropout


class ConfiguredLayer(keras.layers.Layer):
    """A layer with an attribute for each of its constructor's arguments, for a rate a `Dropout` of that rate.

    Arguments may be layers, lists of layers, and dataclasses, which the constructor also takes as dicts.
    """

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        own = {name: _stored(getattr(self, name)) for name in constructor_arguments(type(self))}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build the layer, with new layers where arguments are layers."""
        return super().from_config({name: _restored(value) for name, value in config.items()})


def _stored(value: Any) -> Any:
    if isinstance(value, Dropout):
        return value.rate
    if isinstance(value, keras.layers.Layer):
        return keras.saving.serialize_keras_object(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return [_stored(item) for item in value] if isinstance(value, list) else value


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(item) for item in value]
    is_object = isinstance(value, dict) and "class_name" in value
    return keras.saving.deserialize_keras_object(value) if is_object else value


def constructor_arguments(cls: type) -> list[str]:
    """Return the names of a class's arguments and, if it takes others in `**kwargs`, of our bases' arguments."""
    names: list[str] = []
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == "keras":
            break
        if "__init__" in vars(base):
            kinds = {p.name: p.kind for p in inspect.signature(base).parameters.values()}
            variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            names += [name for name, kind in kinds.items() if kind not in variable]
            if inspect.Parameter.VAR_KEYWORD not in kinds.values():
                break
    return list(dict.fromkeys(names))
