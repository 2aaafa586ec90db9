"""Warnings about NaN and infinite weights when models are saved and loaded."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from lmzoo.layers.sublayers import list_children


def describe_not_finite(name: str, values: np.ndarray) -> str | None:
    """Return a message that counts the NaN and infinite values of the tensor `name`, or None if all are finite."""
    if (is_finite := np.isfinite(values)).all():
        return None
    return f"{name!r} is NaN or infinite in {is_finite.size - np.count_nonzero(is_finite)} of {is_finite.size} values"


def find_not_finite(weights: Iterable[keras.Variable]) -> str | None:
    """Return a message about the first weight with NaN or infinite values, or None if all weights are finite."""
    problems = (describe_not_finite(weight.path, np.asarray(weight)) for weight in weights)
    return next(filter(None, problems), None)


def warn_about_not_finite(place: object, problem: str | None) -> None:
    """Warn about `problem`, a message of `describe_not_finite`, in the file or model `place`, if it is not None."""
    if problem is not None:
        warnings.warn(f"{place}: {problem}, so what is computed with it is meaningless.", stacklevel=3)


class ReportsNotFinite(keras.Model):
    """Base class of models that warn when Keras saves or loads NaN or infinite weights, in any file format.

    A nested model of this class reports its own weights.
    """

    _loading = False

    def save_own_variables(self, store: Any) -> None:
        """Warn about NaN and infinite weights before Keras saves the model's weights."""
        warn_about_not_finite(f"The {type(self).__name__} that is saved", find_not_finite(self._reported_weights))
        super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Schedule the check of the weights, which Keras loads after this call."""
        self._loading = True
        super().load_own_variables(store)

    @property
    def _loaded(self) -> None:
        """Hook that checks the weights when Keras, after loading the layers, reads all attributes of the model."""
        if self._loading:
            self._loading = False
            warn_about_not_finite(f"The {type(self).__name__} that was loaded", find_not_finite(self._reported_weights))

    @property
    def _reported_weights(self) -> list[keras.Variable]:
        """The weights of the model, without the weights of nested models that report their own."""
        layers = [layer for _, layer in list_children(self) if not isinstance(layer, ReportsNotFinite)]
        return [weight for layer in layers for weight in layer.weights]
