"""LayerNorm with a custom gradient on TensorFlow, RMSNorm, and scaling of vectors to length 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.rows import get_width

_MIN_LENGTH = 1e-6  # shorter vectors are divided by this


@keras.saving.register_keras_serializable(package="lmzoo")
class LayerNorm(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` (Ba et al., 2016), computed in at least float32.

    Arguments and results are the same as Keras'. TensorFlow does not fuse the gradients that it derives, so the layer
    has a custom gradient on TensorFlow if only the last axis is normalized, there is a scale and `rms_scaling` is off.
    Forward and backward passes then take three quarters of the time. With `center=False`, there is no bias `beta`.

    Call argument: `inputs` float (..., H). Returns the same shape in the compute dtype.
    """

    axis: Any

    def build(self, input_shape: Shape) -> None:
        """Create the scale and the bias.

        If only the last axis is normalized, the layer accepts inputs with any number of axes.
        """
        normalizes_last = self.axis in (-1, [-1])
        super().build(input_shape)
        if normalizes_last:  # Keras 3.16 counts the axis from the front, for inputs with as many axes as `input_shape`
            self.axis = [-1]

    def call(self, inputs: Tensor) -> Tensor:
        """Return the normalized `inputs`."""
        is_last_axis = self.axis in ([-1], [len(inputs.shape) - 1])
        has_custom_gradient = is_last_axis and self.scale and not self.rms_scaling
        if keras.backend.backend() != "tensorflow" or not has_custom_gradient:
            return super().call(inputs)
        import tensorflow as tf

        weights = [self.gamma, self.beta] if self.center else [self.gamma]
        x, *weights = (tf.convert_to_tensor(t) for t in (inputs, *weights))
        wide_dtype = tf.float64 if x.dtype == tf.float64 else tf.float32
        y = tf.custom_gradient(self._normalize)(*(tf.cast(t, wide_dtype) for t in (x, *weights)))
        return tf.cast(y, self.compute_dtype)

    def _normalize(
        self, x: Tensor, gamma: Tensor, beta: Tensor | None = None
    ) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
        """Return the normalized and scaled `x`, and a function that computes the gradients with TensorFlow."""
        import tensorflow as tf

        def mean(values: Tensor) -> Tensor:
            return tf.reduce_mean(values, axis=-1, keepdims=True)  # (..., 1)

        centered = x - mean(x)  # (..., H)
        inverse_deviation = tf.math.rsqrt(mean(tf.square(centered)) + tf.cast(self.epsilon, x.dtype))  # (..., 1)
        normalized = centered * inverse_deviation  # (..., H)

        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            dy = upstream * gamma  # (..., H), gradient of `normalized`
            dx = inverse_deviation * (dy - mean(dy) - normalized * mean(dy * normalized))
            axes = list(range(x.shape.rank - 1))
            dgamma = tf.reduce_sum(upstream * normalized, axes)  # (H,)
            return (dx, dgamma) if beta is None else (dx, dgamma, tf.reduce_sum(upstream, axes))

        scaled = normalized * gamma  # (..., H)
        return scaled if beta is None else scaled + beta, gradient


@keras.saving.register_keras_serializable(package="lmzoo")
class RMSNorm(ConfiguredLayer):
    """Division of vectors by their root mean square, and multiplication by a learned scale (Zhang & Sennrich, 2019).

    https://arxiv.org/abs/1910.07467. Unlike `LayerNorm`, it subtracts no mean and has no bias. It is computed in at
    least float32.

    Args:
        epsilon: float, added to the mean square.

    Call argument: `inputs` float (..., H). Returns the same shape in the compute dtype.

    Example:

    ```python
    import numpy as np
    from lmzoo.layers import RMSNorm

    RMSNorm()(np.array([[3.0, 4.0]], "float32"))  # [[0.8485281, 1.1313709]]
    ```
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape: Shape) -> None:
        """Create the scale."""
        self.gamma = self.add_weight(shape=(get_width(input_shape),), initializer="ones", name="gamma")

    def call(self, inputs: Tensor) -> Tensor:
        """Return the normalized `inputs`."""
        x = inputs if self.compute_dtype == "float64" else ops.cast(inputs, "float32")
        x = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + self.epsilon)  # (..., H)
        return ops.cast(x * ops.cast(self.gamma, x.dtype), self.compute_dtype)

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        """Return the spec of the output, which is shaped like `inputs`."""
        return keras.KerasTensor(inputs.shape, self.compute_dtype)


def unit_vectors(x: Tensor) -> Tensor:
    """Return vectors (..., H) divided by their lengths, in float32; a vector of zeros stays zero.

    Vectors shorter than 1e-6 are divided by 1e-6. Unlike with `keras.ops.normalize`, the gradients are finite where a
    vector is zero.
    """
    x = ops.cast(x, "float32")
    squared_lengths = ops.sum(ops.square(x), axis=-1, keepdims=True)  # (..., 1)
    return x * ops.rsqrt(ops.maximum(squared_lengths, _MIN_LENGTH**2))
