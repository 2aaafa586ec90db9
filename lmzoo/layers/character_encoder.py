"""Encoder that computes word vectors from characters.

Letters in shape comments: N words, W characters per word, E width of a character embedding, F filters, P width of a
word vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.activations import get_activation
from lmzoo.layers.adapted import Dense
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.rows import get_width


def make_initializer_with_zero_row(initializer: keras.initializers.Initializer) -> Callable[..., Tensor]:
    """Return an initializer of embedding tables: zeros for padding in the first row, then rows from `initializer`."""

    def initialize(shape: tuple[int, ...], dtype: str) -> Tensor:
        return ops.pad(initializer((shape[0] - 1, *shape[1:]), dtype=dtype), [[1, 0], [0, 0]])

    return initialize


def _make_scaled_normal(fan_in: int) -> keras.initializers.Initializer:
    """Return a normal initializer with variance 1 / `fan_in`."""
    return keras.initializers.RandomNormal(stddev=fan_in**-0.5)


@keras.saving.register_keras_serializable(package="lmzoo")
class Highway(keras.layers.Layer):
    """Highway layer (Srivastava et al., 2015): g * relu(x W_t + b_t) + (1 - g) * x with g = sigmoid(x W_c + b_c).

    The gate's bias starts at -2, so that most of `x` passes. Call argument: `inputs` float (N, F).
    Returns float (N, F).
    """

    def build(self, input_shape: Shape) -> None:
        """Create the weights of the gate and of the transform."""
        width = get_width(input_shape)
        self.carry, self.transform = (
            Dense(
                width,
                kernel_initializer=_make_scaled_normal(width),
                bias_initializer=keras.initializers.Constant(bias),
                dtype=self.dtype_policy,
                name=name,
            )
            for name, bias in (("carry", -2.0), ("transform", 0.0))
        )
        self.carry.build(input_shape)
        self.transform.build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """Return the gated sum of the transformed inputs and the inputs."""
        gate = ops.sigmoid(self.carry(inputs))  # (N, F)
        return gate * ops.relu(self.transform(inputs)) + (1 - gate) * inputs

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape of the inputs."""
        return input_shape


@keras.saving.register_keras_serializable(package="lmzoo")
class CharacterEncoder(ConfiguredLayer):
    """Character CNN that maps each word to a vector: convolutions, highway layers, a projection (Kim et al., 2016).

    https://arxiv.org/abs/1508.06615

    On TensorFlow, an eager call encodes each distinct word once and skips columns that are padding in all words. With
    `layer.dedupe = True`, graphs do the same, but XLA cannot compile them.

    Args:
        num_characters: int, number of character ids; the vector of id 0, which fills padding words, is initially zero.
        embedding_dim: int, width E of a character embedding.
        filters: for each convolution, a pair of ints: the width of its filters in characters, and their number. F is
            the sum of these numbers.
        output_dim: int, width P of a word vector. If it equals F, there is no projection.
        num_highway: int, number of highway layers.
        activation: str, activation of the convolutions; see `get_activation`.
        max_characters: int, maximum number of characters per word, W.
        padding: int, the character id that pads a word. It has a trained vector, and the convolutions see it.

    Call argument: `inputs` int32 (N, W), character ids of the words; trailing columns that hold only `padding` may be
    missing. Returns the word vectors, float (N, P).
    """

    def __init__(
        self,
        num_characters: int,
        embedding_dim: int,
        filters: tuple[tuple[int, int], ...],
        output_dim: int,
        num_highway: int,
        activation: str,
        max_characters: int,
        padding: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_characters = num_characters
        self.embedding_dim = embedding_dim
        self.filters = tuple((width, count) for width, count in filters)
        self.output_dim = output_dim
        self.num_highway = num_highway
        self.activation = activation
        self.max_characters = max_characters
        self.padding = padding
        self.dedupe = False
        policy = self.dtype_policy
        self.num_filters = sum(count for _, count in filters)
        self.highways = [Highway(dtype=policy, name=f"highway_{i}") for i in range(num_highway)]
        self.projection = None
        if self.num_filters != output_dim:
            initializer = _make_scaled_normal(self.num_filters)
            self.projection = Dense(output_dim, kernel_initializer=initializer, dtype=policy, name="projection")

    def build(self, input_shape: Shape) -> None:
        """Create the embedding table, the filters, and the weights of the highway layers and the projection."""
        self.embedding = self.add_weight(
            shape=(self.num_characters, self.embedding_dim),
            initializer=make_initializer_with_zero_row(keras.initializers.RandomUniform(-1.0, 1.0)),
            name="embedding",
        )
        self.kernels = []
        self.biases = []
        for i, (width, count) in enumerate(self.filters):
            initializer = keras.initializers.RandomUniform(-0.05, 0.05)
            if self.activation == "tanh":
                initializer = _make_scaled_normal(width * self.embedding_dim)
            shape = (width, self.embedding_dim, count)
            self.kernels.append(self.add_weight(shape=shape, initializer=initializer, name=f"kernel_{i}"))
            self.biases.append(self.add_weight(shape=(count,), initializer="zeros", name=f"bias_{i}"))
        for highway in self.highways:
            highway.build((None, self.num_filters))
        if self.projection is not None:
            self.projection.build((None, self.num_filters))
        self.restore_created_layers()

    def call(self, inputs: Tensor) -> Tensor:
        """Return the vector of each word."""
        max_width = max(width for width, _ in self.filters)
        # Every filter must see a window of only padding, as it does in words padded to `max_characters`.
        words = ops.pad(inputs, [[0, 0], [0, max_width]], constant_values=self.padding)[:, : self.max_characters]
        if keras.backend.backend() != "tensorflow":
            return self._encode(words)
        import tensorflow as tf

        if not (self.dedupe or tf.executing_eagerly()):
            return self._encode(words)
        is_used = tf.reduce_any((words != self.padding) & (words != 0), axis=0)  # (W,)
        used_length = tf.reduce_max(tf.where(is_used, tf.range(1, tf.size(is_used) + 1), 0))
        words, word_indices = tf.raw_ops.UniqueV2(x=words[:, : used_length + max_width], axis=[0])
        return tf.gather(self._encode(words), word_indices)  # (N, P)

    def _encode(self, words: Tensor) -> Tensor:
        """Return the vectors of words, (N, P), from their padded character ids."""
        characters = ops.take(ops.cast(self.embedding, self.compute_dtype), words, axis=0)  # (N, W, E)
        activation = get_activation(self.activation)
        features = []
        for (width, count), kernel, bias in zip(self.filters, self.kernels, self.biases, strict=True):
            # One product with all windows is faster than a convolution under XLA, and as fast elsewhere.
            num_windows = ops.shape(characters)[1] - width + 1
            shape = (ops.shape(characters)[0], num_windows, self.embedding_dim)
            windows = ops.concatenate([ops.slice(characters, (0, i, 0), shape) for i in range(width)], axis=2)
            windows = ops.reshape(windows, (-1, width * self.embedding_dim))  # (N * num_windows, width * E)
            outputs = ops.matmul(windows, ops.reshape(kernel, (-1, count)))
            outputs = ops.reshape(outputs, (-1, num_windows, count))
            # Without an initial value, Keras raises an error for a batch without words.
            features.append(activation(ops.max(outputs, axis=1, initial=-math.inf) + bias))  # (N, count)
        x = ops.concatenate(features, axis=1)  # (N, F)
        for highway in self.highways:
            x = highway(x)
        return self.projection(x) if self.projection else x  # (N, P)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the output shape (N, P)."""
        return (input_shape[0], self.output_dim)
