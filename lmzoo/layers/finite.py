"""Finds weights that are not finite, and says so when they are saved and loaded."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np


def not_finite(name: str, values: np.ndarray) -> str | None:
    """Return what is wrong with a tensor, as "'pooler/dense/kernel' is NaN or infinite in 3 of 441 values", or None."""
    if (finite := np.isfinite(values)).all():
        return None
    return f"{name!r} is NaN or infinite in {finite.size - np.count_nonzero(finite)} of {finite.size} values"


def first_not_finite(weights: Iterable[keras.Variable]) -> str | None:
    """Return what is wrong with the first of some weights that is not finite; see `not_finite`."""
    found = (not_finite(weight.path, np.asarray(weight)) for weight in weights)
    return next(filter(None, found), None)


def warn_of_not_finite(place: object, problem: str | None) -> None:
    """Warn of a tensor in a file or model, a place, if `not_finite` found a problem."""
    if problem is not None:
        warnings.warn(f"{place}: {problem}, so what is computed with it is meaningless.", stacklevel=3)


class ReportsNotFinite(keras.Model):
    """A model that warns when Keras saves or loads weights of it that are not finite, in files of any kind.

    Layers that are such models report their own weights.
    """

    _loading = False

    def save_own_variables(self, store: Any) -> None:
        """Check the weights before Keras saves those of the layers."""
        warn_of_not_finite(f"The {type(self).__name__} that is saved", first_not_finite(self._reported))
        super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Check the weights before Keras loads those of the layers."""
        self._loading = True
        super().load_own_variables(store)

    @property
    def _loaded(self) -> None:
        """Keras has no call after loading, but it reads all attributes of a model once it has loaded the layers."""
        if self._loading:
            self._loading = False
            warn_of_not_finite(f"The {type(self).__name__} that was loaded", first_not_finite(self._reported))

    @property
    def _reported(self) -> list[keras.Variable]:
        return [w for layer in self.layers if not isinstance(layer, ReportsNotFinite) for w in layer.weights]
