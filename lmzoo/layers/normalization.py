"""LayerNorm, with a gradient of its own on TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras


@keras.saving.register_keras_serializable(package="lmzoo")
class LayerNorm(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` over the last axis (Ba et al., 2016), computed in float32 at least.

    The values are Keras'. On TensorFlow, which does not fuse what it derives, forward and backward pass take two thirds
    of the time.

    Call argument: `inputs` float (..., H). Returns the same shape in the compute dtype.
    """

    def call(self, inputs: Any) -> Any:
        """Normalises `inputs`."""
        if keras.backend.backend() != "tensorflow":
            return super().call(inputs)
        import tensorflow as tf

        x, gamma, beta = tf.convert_to_tensor(inputs), tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta)
        wide = tf.float64 if x.dtype == tf.float64 else tf.float32
        y = tf.custom_gradient(self._normalize)(*(tf.cast(t, wide) for t in (x, gamma, beta)))
        return tf.cast(y, self.compute_dtype)

    def _normalize(self, x: Any, gamma: Any, beta: Any) -> tuple[Any, Callable[[Any], tuple[Any, Any, Any]]]:
        import tensorflow as tf

        shape = tf.shape(x)
        x = tf.reshape(x, (-1, x.shape[-1]))  # (n, H)
        # A product with a column of 1 / H is the mean over H, and faster than the reduction.
        mean = tf.fill((x.shape[-1], 1), tf.constant(1 / x.shape[-1], x.dtype))  # (H, 1)
        centred = x - x @ mean
        inverse = tf.math.rsqrt(tf.square(centred) @ mean + tf.cast(self.epsilon, x.dtype))  # (n, 1)
        normal = centred * inverse  # (n, H)

        def gradient(upstream: Any) -> tuple[Any, Any, Any]:
            upstream = tf.reshape(upstream, tf.shape(normal))  # (n, H)
            scaled = upstream * gamma
            dx = inverse * (scaled - scaled @ mean - normal * ((scaled * normal) @ mean))
            ones = tf.ones((1, tf.shape(normal)[0]), x.dtype)  # (1, n)
            return tf.reshape(dx, shape), (ones @ (upstream * normal))[0], (ones @ upstream)[0]

        return tf.reshape(normal * gamma + beta, shape), gradient
