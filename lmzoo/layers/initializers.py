"""Weight initializers that can be skipped for weights that will be loaded from files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

import keras
import numpy as np

from lmzoo.common.tensor_types import Shape, Tensor

_skips_values = ContextVar("skipped", default=False)


@contextmanager
def skip_initial_values() -> Iterator[None]:
    """Leave weights with an initializer of this module uninitialized in the block; assign them before use.

    Drawing millions of values takes longer than loading the values that replace them.
    """
    token = _skips_values.set(True)
    try:
        yield
    finally:
        _skips_values.reset(token)


@keras.saving.register_keras_serializable(package="lmzoo")
class TruncatedNormal(keras.initializers.TruncatedNormal):
    """Truncated normal initializer: values lie within two standard deviations of the mean.

    Inside `skip_initial_values`, the values are arbitrary.

    On JAX, NumPy draws the values if `seed` is an int or None, since JAX would compile a program for each shape.

    Call arguments: `shape`, `dtype`. Returns a tensor.
    """

    def __call__(self, shape: Shape, dtype: str | None = None) -> Tensor:
        """Return a tensor of random values, or of arbitrary values inside `skip_initial_values`."""
        if _skips_values.get():
            return _make_uninitialized(shape, dtype)
        if keras.backend.backend() != "jax" or not isinstance(self.seed, int):
            return super().__call__(shape, dtype)
        rng = np.random.default_rng(self.seed)
        values = rng.standard_normal(math.prod(cast("tuple[int, ...]", shape)), "float32")
        outlier_indices = np.flatnonzero(np.abs(values) > 2)
        while len(outlier_indices):
            values[outlier_indices] = rng.standard_normal(len(outlier_indices), "float32")
            outlier_indices = outlier_indices[np.abs(values[outlier_indices]) > 2]
        return keras.ops.convert_to_tensor((self.mean + self.stddev * values).reshape(shape), dtype)


@keras.saving.register_keras_serializable(package="lmzoo")
class Orthogonal(keras.initializers.Orthogonal):
    """Orthogonal matrix initializer for any float dtype.

    Inside `skip_initial_values`, the values are arbitrary.

    Values of 16-bit dtypes are drawn in float32, since no backend implements the QR decomposition for 16 bits.

    Call arguments: `shape`, `dtype`. Returns a tensor.
    """

    def __call__(self, shape: Shape, dtype: str | None = None) -> Tensor:
        """Return a tensor of random values, or of arbitrary values inside `skip_initial_values`."""
        if _skips_values.get():
            return _make_uninitialized(shape, dtype)
        dtype = keras.backend.standardize_dtype(dtype)
        wide_dtype = "float32" if dtype in ("float16", "bfloat16") else dtype
        return keras.ops.cast(super().__call__(shape, wide_dtype), dtype)


def _make_uninitialized(shape: Shape, dtype: str | None) -> Tensor:
    """Return a tensor of arbitrary values.

    On TensorFlow, the tensor takes no memory before it is written to, unlike zeros. Other backends get zeros: from
    NumPy, since JAX would compile a program for each shape, or from the backend itself if there are several devices.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.raw_ops.Empty(shape=shape, dtype=keras.backend.standardize_dtype(dtype), init=False)
    if keras.distribution.distribution() is not None:
        return keras.ops.zeros(shape, dtype)
    return keras.ops.convert_to_tensor(np.zeros(cast("tuple[int, ...]", shape), "float32"), dtype)
