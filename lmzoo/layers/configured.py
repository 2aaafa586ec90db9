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
        parameters = inspect.signature(type(self)).parameters.values()
        own = {p.name: getattr(self, p.name) for p in parameters if p.kind is not p.VAR_KEYWORD}
        rates = {name: value.rate for name, value in own.items() if isinstance(value, Dropout)}
        return {**super().get_config(), **own, **rates}
