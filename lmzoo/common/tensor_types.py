"""Names for the types of tensors, in annotations."""

from __future__ import annotations

from typing import Any, TypeAlias

# A tensor of the backend, a numpy array where Keras converts it, or a symbolic `keras.KerasTensor`. Keras has no common
# class for them, so type checkers allow anything.
Tensor: TypeAlias = Any
# Lengths of the axes; None where one is not known before the model is called.
Shape: TypeAlias = tuple[int | None, ...]
# Tensors in tuples, lists and dicts, as the function's documentation says.
Tensors: TypeAlias = Any
# A model's inputs or outputs by name.
Features: TypeAlias = dict[str, Tensors]
