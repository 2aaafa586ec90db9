"""The softmax over a large vocabulary; in training over a sample of it.

Letters in shape comments: V words of the vocabulary, S words of the sample, P width of a vector, N vectors.
"""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.rows import as_rows, width_of

_NEVER = -1e9  # a logit whose probability is 0 in float32


def log_uniform(ranks: Tensor, vocabulary_size: int) -> Tensor:
    """ln((r + 2) / (r + 1)) / ln(V + 1): about the share of a text that is the word of rank r (Zipf's law).

    Ranks, int (n,), are 0 for the most frequent word. The shares, float32 (n,), of all V ranks add up to 1.
    """
    return ops.log1p(1 / (ops.cast(ranks, "float32") + 1)) / math.log(vocabulary_size + 1)


def draw_words(vocabulary_size: int, count: int, seed: Tensor) -> tuple[Tensor, Tensor]:
    """Draw S words from the log-uniform distribution, without replacement; S is below V.

    Each word gets a time of arrival, exponentially distributed with its probability p as the rate, and the first words
    are taken. This is the same as drawing one word after the other, and again where a word was drawn already. If the
    next word would arrive at time t, each word was taken with probability 1 - exp(-p t). Terms divided by that add up,
    on average, to the sum over all words (Cohen and Kaplan, 2007, "Summarizing data using bottom-k sketches").

    Returns:
        Ranks, int32 (S,), in the order of arrival, and t, float32.
    """
    probabilities = log_uniform(ops.arange(vocabulary_size), vocabulary_size)  # (V,)
    uniform = keras.random.uniform((vocabulary_size,), seed=seed)
    earliest, ranks = ops.top_k(ops.log1p(-uniform) / probabilities, count + 1)  # of the negative times
    return ops.cast(ranks[:-1], "int32"), -earliest[-1]


def log_expected_counts(ranks: Tensor, vocabulary_size: int, time: Tensor) -> Tensor:
    """Return the logarithm of a word's probability to be drawn, float32 (n,), for the time of `draw_words`."""
    return ops.log(-ops.expm1(-log_uniform(ranks, vocabulary_size) * time))


@keras.saving.register_keras_serializable(package="lmzoo")
class SampledSoftmax(ConfiguredLayer):
    """Log-probabilities of words under a softmax; in training over a sample of the vocabulary.

    The whole batch shares a sample. The logarithms of the expected counts are subtracted from the logits, and a sampled
    word does not compete with itself where it is the target (Jean et al., 2015, https://arxiv.org/abs/1412.2007). The
    ids must be ranks by frequency, 0 for the most frequent word.

    Args:
        vocabulary_size: int, V.
        num_sampled: int, S; if it is V or more, the softmax is always over all words.
        seed: optional int; makes the sequence of samples reproducible.

    Call arguments: `vectors` float (..., P); `targets` int (...), -1 where there is none. Returns float32 (...), 0
    where there is no target.

    Raises:
        ValueError: for a `num_sampled` below 1.

    Example:

    ```python
    import numpy as np
    from lmzoo.layers import SampledSoftmax

    softmax = SampledSoftmax(vocabulary_size=1000, num_sampled=100)
    vectors, targets = np.ones((2, 3, 8), "float32"), np.array([[5, 0, 31], [7, 2, -1]])
    softmax(vectors, targets, training=True).shape  # (2, 3)
    ```
    """

    def __init__(self, vocabulary_size: int, num_sampled: int, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require(is_integer(num_sampled, 1), "num_sampled", "a positive integer", num_sampled)
        self.vocabulary_size = vocabulary_size
        self.num_sampled = num_sampled
        self.seed = seed
        if num_sampled < vocabulary_size:
            self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, vectors_shape: Shape, targets_shape: Shape | None = None) -> None:
        """Create a vector and a bias for each word."""
        width = width_of(vectors_shape)
        initializer = keras.initializers.RandomNormal(stddev=width**-0.5)
        self.kernel = self.add_weight(shape=(self.vocabulary_size, width), initializer=initializer, name="kernel")
        self.bias = self.add_weight(shape=(self.vocabulary_size,), initializer="zeros", name="bias")

    def call(self, vectors: Tensor, targets: Tensor, training: bool = False) -> Tensor:
        """Compute the log-probabilities."""
        shape, x = ops.shape(targets), as_rows(vectors)  # (N, P)
        targets = ops.cast(ops.reshape(targets, (-1,)), "int32")  # (N,)
        found = ops.maximum(targets, 0)
        if training and self.num_sampled < self.vocabulary_size:
            sample, time = draw_words(self.vocabulary_size, self.num_sampled, self.seed_generator)
            results = self.among(x, found, sample, time)
        else:
            logits = self._logits(x, self.kernel, self.bias)  # (N, V)
            chosen = ops.take_along_axis(logits, found[:, None], axis=1)[:, 0]
            results = chosen - ops.logsumexp(logits, axis=1)
        return ops.reshape(ops.where(targets >= 0, results, 0.0), shape)

    def among(self, vectors: Tensor, targets: Tensor, sample: Tensor, time: Tensor) -> Tensor:
        """Log-probabilities, float32 (N,), of targets, int (N,), for vectors (N, P); see `draw_words` for the rest.

        Each target is among itself and the sample of words.
        """
        counts = [log_expected_counts(ranks, self.vocabulary_size, time) for ranks in (targets, sample)]  # (N,), (S,)
        kernel = ops.cast(ops.take(self.kernel, targets, axis=0), vectors.dtype)  # (N, P)
        chosen = ops.cast(ops.sum(vectors * kernel, axis=1), "float32") - counts[0]
        chosen = chosen + ops.cast(ops.take(self.bias, targets), "float32")  # (N,)
        kernel, bias = (ops.take(weight, sample, axis=0) for weight in (self.kernel, self.bias))
        logits = self._logits(vectors, kernel, bias) - counts[1]  # (N, S)
        logits = ops.where(targets[:, None] == sample, _NEVER, logits)
        return chosen - ops.logsumexp(ops.concatenate([chosen[:, None], logits], axis=1), axis=1)

    def _logits(self, vectors: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        logits = ops.matmul(vectors, ops.transpose(ops.cast(kernel, vectors.dtype)))
        return ops.cast(logits, "float32") + ops.cast(bias, "float32")

    def compute_output_spec(self, vectors: Tensor, targets: Tensor, training: bool = False) -> keras.KerasTensor:
        """Return float32, whatever the compute dtype."""
        return keras.KerasTensor(targets.shape, "float32")
