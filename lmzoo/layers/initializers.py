"""Initial values of weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import keras

from lmzoo.tensor_types import Shape, Tensor

_skipped = ContextVar("skipped", default=False)


@contextmanager
def skip_initial_values() -> Iterator[None]:
    """Weights that are made in here hold anything, and must be assigned before they are used.

    To draw millions of values takes longer than to load others over them.
    """
    token = _skipped.set(True)
    try:
        yield
    finally:
        _skipped.reset(token)


@keras.saving.register_keras_serializable(package="lmzoo")
class TruncatedNormal(keras.initializers.TruncatedNormal):
    """Keras' initializer, which draws from a normal distribution cut at two standard deviations; it can be skipped.

    Call arguments: `shape`, `dtype`. Returns a tensor.
    """

    def __call__(self, shape: Shape, dtype: str | None = None) -> Tensor:
        """Draws the values."""
        return _unset(shape, dtype) if _skipped.get() else super().__call__(shape, dtype)


def _unset(shape: Shape, dtype: str | None) -> Tensor:
    """A tensor of any values. On TensorFlow it takes no memory before it is written to, as one of zeros would."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.raw_ops.Empty(shape=shape, dtype=keras.backend.standardize_dtype(dtype), init=False)
    return keras.ops.zeros(shape, dtype)
