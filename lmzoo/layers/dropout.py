"""Dropout of elements, of features in all steps, and of words, with 16 random bits per decision."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import require_share
from lmzoo.common.tensor_types import Shape, Tensor

_LEVELS = 1 << 16  # values of 16 random bits


def _draw_random_bits(shape: Shape | Tensor, seed: Tensor) -> Tensor | None:
    """Return uniform uint16 values, cut from random 32-bit words on TensorFlow and JAX, or None on other backends."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        num_values = tf.reduce_prod(shape)
        bits32 = tf.random.stateless_uniform([(num_values + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32)
        halves = tf.reshape(tf.bitcast(bits32, tf.uint16), [-1])
        return tf.reshape(halves[:num_values], shape)
    if backend == "jax":
        import jax

        num_values = math.prod(shape)
        bits32 = jax.random.bits(
            jax.random.wrap_key_data(seed, impl="threefry2x32"), ((num_values + 1) // 2,), "uint32"
        )
        return jax.lax.bitcast_convert_type(bits32, "uint16").reshape(-1)[:num_values].reshape(shape)
    return None


@keras.saving.register_keras_serializable(package="lmzoo")
class Dropout(keras.layers.Layer):
    """Dropout with 16 random bits per element (Srivastava et al., 2014).

    In training, each element becomes zero with probability `rate`, and is otherwise multiplied by `1 / (1 - rate)`. The
    rate is rounded to a multiple of 2^-16; the factor uses the rounded rate, so that the expectation is exact. On
    backends other than TensorFlow and JAX, Keras' own dropout is used, without rounding.

    Args:
        rate: float in [0, 1), the fraction of elements to drop in training.
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

    def mask_shape(self, inputs: Tensor) -> Shape:
        """Return the shape of the mask, which is broadcast against `inputs`."""
        return ops.shape(inputs)

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Drop elements of `inputs`, a float tensor of any shape, if `training`."""
        threshold = min(round(self.rate * _LEVELS), _LEVELS - 1)
        if not training or threshold == 0:
            return inputs
        seed = self.seed_generator.next()
        bits = _draw_random_bits(self.mask_shape(inputs), seed)
        if bits is None:
            return keras.random.dropout(inputs, self.rate, self.mask_shape(inputs), seed=self.seed_generator)
        scale = ops.cast(_LEVELS / (_LEVELS - threshold), inputs.dtype)
        return ops.where(bits >= threshold, inputs * scale, ops.zeros_like(inputs))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


@keras.saving.register_keras_serializable(package="lmzoo")
class LockedDropout(Dropout):
    """Dropout with the same mask for all steps of a sequence (Gal & Ghahramani, 2016; Merity et al., 2018).

    Args:
        rate: float in [0, 1), the fraction of features to drop in training.
        seed: optional int; makes the sequence of masks reproducible.

    Call argument: `inputs` float (B, T, H), for B sequences of T steps. Returns float (B, T, H).

    Example:

    ```python
    import numpy as np
    from lmzoo.layers import LockedDropout

    x = np.ones((2, 5, 3), "float32")
    LockedDropout(0.5, seed=7)(x, training=True)  # the rows of a sequence are equal
    ```
    """

    def mask_shape(self, inputs: Tensor) -> Shape:
        """Return the shape of the mask, (B, 1, H)."""
        batch, _, width = ops.shape(inputs)
        return batch, 1, width


@keras.saving.register_keras_serializable(package="lmzoo")
class WordDropout(Dropout):
    """Dropout of whole rows of an embedding table (Gal & Ghahramani, 2016; Merity et al., 2018).

    In training, all occurrences of a token in a batch become zero with probability `rate`, and are otherwise multiplied
    by `1 / (1 - rate)`.

    Args:
        rate: float in [0, 1), the fraction of the vocabulary to drop in training.
        vocabulary_size: int, number of rows of the embedding table.
        seed: optional int; makes the sequence of masks reproducible.

    Call arguments: `inputs` float (B, T, H), the embeddings of `token_ids` int (B, T). Returns float (B, T, H).

    Example:

    ```python
    import numpy as np
    from lmzoo.layers import WordDropout

    ids = np.array([[4, 7, 4]])
    WordDropout(0.5, vocabulary_size=11, seed=7)(np.ones((1, 3, 2), "float32"), ids, training=True)
    ```
    """

    def __init__(self, rate: float, vocabulary_size: int, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(rate, seed, **kwargs)
        self.vocabulary_size = vocabulary_size

    def call(  # type: ignore[override]
        self, inputs: Tensor, token_ids: Tensor, training: bool = False
    ) -> Tensor:
        """Drop the embeddings of random tokens if `training`."""
        if not training or not self.rate:
            return inputs
        factors = super().call(ops.ones((self.vocabulary_size,), inputs.dtype), training=True)  # (V,)
        return inputs * ops.expand_dims(ops.take(factors, token_ids), -1)

    def compute_output_shape(self, inputs_shape: Shape, token_ids_shape: Shape | None = None) -> Shape:
        """Return the shape of the inputs."""
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "vocabulary_size": self.vocabulary_size}
