"""The base of layers whose constructor's arguments are their attributes."""

from __future__ import annotations

import inspect
from typing import Any

import keras

from lmzoo.layers.dropout import Dropout


class ConfiguredLayer(keras.layers.Layer):
    """A layer with an attribute for each of its constructor's arguments, for a rate a `Dropout` of that rate."""

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        own = {name: getattr(self, name) for name in constructor_arguments(type(self))}
        rates = {name: value.rate for name, value in own.items() if isinstance(value, Dropout)}
        return {**super().get_config(), **own, **rates}


def constructor_arguments(cls: type) -> list[str]:
    """Names of the arguments of a class's constructor and, if it takes others in `**kwargs`, of our bases'."""
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
