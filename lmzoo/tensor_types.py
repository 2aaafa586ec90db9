"""Names for the types of tensors, in annotations."""

from __future__ import annotations

from typing import Any, TypeAlias

# A tensor of the backend, a numpy array where Keras converts it, or a symbolic `keras.KerasTensor`. Keras has no common
# class for them, so type checkers allow anything.
Tensor: TypeAlias = Any
# Lengths of the axes; None where one is not known before the model is called.
Shape: TypeAlias = tuple[int | None, ...]
# A model's inputs or outputs by name; a value may also be a tuple of tensors.
Features: TypeAlias = dict[str, Tensor]
