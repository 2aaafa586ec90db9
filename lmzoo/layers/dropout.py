"""Dropout that draws 16 random bits per element instead of a 32-bit float."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import require_share
from lmzoo.common.tensor_types import Shape, Tensor

_LEVELS = 1 << 16


def _random_bits(shape: Shape | Tensor, seed: Tensor) -> Tensor | None:
    """Uniform uint16 values of a shape, two from each random word; None if the backend has no cheap way."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        size = tf.reduce_prod(shape)
        words = tf.random.stateless_uniform([(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32)
        halves = tf.reshape(tf.bitcast(words, tf.uint16), [-1])
        return tf.reshape(halves[:size], shape)
    if backend == "jax":
        import jax

        size = math.prod(shape)
        words = jax.random.bits(jax.random.wrap_key_data(seed, impl="threefry2x32"), ((size + 1) // 2,), "uint32")
        return jax.lax.bitcast_convert_type(words, "uint16").reshape(-1)[:size].reshape(shape)
    return None


@keras.saving.register_keras_serializable(package="lmzoo")
class Dropout(keras.layers.Layer):
    """Dropout: zeros with probability `rate`, all else times `1 / (1 - rate)` (Srivastava et al., 2014).

    An element is dropped where 16 random bits, read as an integer, are below a threshold. The rate is therefore rounded
    to a multiple of 2^-16. The scale is the inverse of the rounded keep probability, so the expectation is exact.

    Args:
        rate: float in [0, 1), the share of elements to drop in training.
        seed: optional int; makes the sequence of masks reproducible.

    Example:

    ```python
    import numpy as np
    from lmzoo.layers import Dropout

    x = np.ones((2, 3), "float32")
    Dropout(0.5, seed=7)(x, training=True)  # zeros and twos
    ```
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require_share("rate", rate)
        self.rate = rate
        self.seed = seed
        self.supports_masking = True
        if rate > 0:
            self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Drop elements of `inputs`, a float tensor of any shape, when `training`."""
        threshold = min(round(self.rate * _LEVELS), _LEVELS - 1)
        if not training or threshold == 0:
            return inputs
        seed = self.seed_generator.next()
        bits = _random_bits(ops.shape(inputs), seed)
        if bits is None:
            return keras.random.dropout(inputs, self.rate, seed=self.seed_generator)
        scale = ops.cast(_LEVELS / (_LEVELS - threshold), inputs.dtype)
        return ops.where(bits >= threshold, inputs * scale, ops.zeros_like(inputs))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the inputs' shape."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}
