"""Sampled softmax, for training language models with a large vocabulary.

Letters in shape comments: V words in the vocabulary, S words in the sample, P width of a hidden state, N hidden states.
"""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, require
from lmzoo.common.tensor_types import Shape, Tensor
from lmzoo.layers.configured import ConfiguredLayer
from lmzoo.layers.rows import as_rows, get_width

_EXCLUDED = -1e9  # a logit whose probability is 0 in float32


def log_uniform_probabilities(ranks: Tensor, vocabulary_size: int) -> Tensor:
    """Return the probability of each word, float32 (n,), in the log-uniform distribution over frequency ranks.

    The probability of rank r is ln((r + 2) / (r + 1)) / ln(V + 1), about the relative frequency of a word under Zipf's
    law. The probabilities of all V ranks add up to 1.

    Args:
        ranks: int (n,), frequency ranks of n words, 0 for the most frequent word.
        vocabulary_size: int, number of words in the vocabulary, V.
    """
    return ops.log1p(1 / (ops.cast(ranks, "float32") + 1)) / math.log(vocabulary_size + 1)


def draw_words(vocabulary_size: int, count: int, seed: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a sample of words without replacement from the log-uniform distribution.

    Each word gets an arrival time, exponentially distributed with its probability p as the rate, and the first S words
    are the sample. This is equivalent to drawing words one by one and drawing again for repeated words. If the next
    word would arrive at time t, each word is in the sample with probability 1 - exp(-p t). Sums over the sample of
    terms divided by this probability are unbiased estimates of sums over all words (Cohen and Kaplan, 2007,
    "Summarizing data using bottom-k sketches").

    Args:
        vocabulary_size: int, number of words in the vocabulary, V.
        count: int, sample size S, less than V.
        seed: seed for `keras.random`.

    Returns:
        The frequency ranks of the sampled words, int32 (S,), in the order of arrival, and the time t, float32 ().
    """
    probabilities = log_uniform_probabilities(ops.arange(vocabulary_size), vocabulary_size)  # (V,)
    uniform_values = keras.random.uniform((vocabulary_size,), seed=seed)
    negative_times, ranks = ops.top_k(ops.log1p(-uniform_values) / probabilities, count + 1)
    return ops.cast(ranks[:-1], "int32"), -negative_times[-1]


def log_inclusion_probabilities(ranks: Tensor, vocabulary_size: int, time: Tensor) -> Tensor:
    """Return the log-probability, float32 (n,), that each word is in a sample.

    Args:
        ranks: int (n,), frequency ranks of n words.
        vocabulary_size: int, number of words in the vocabulary, V.
        time: float32 (), time t returned by `draw_words`.
    """
    return ops.log(-ops.expm1(-log_uniform_probabilities(ranks, vocabulary_size) * time))


@keras.saving.register_keras_serializable(package="lmzoo")
class SampledSoftmax(ConfiguredLayer):
    """Layer that computes the log-probabilities of target words; in training, the softmax is over a sample of words.

    The whole batch shares a sample. The log-probability that a word is in the sample is subtracted from its logit, and
    a sampled word does not compete with itself where it is the target (Jean et al., 2015,
    https://arxiv.org/abs/1412.2007). Word ids must be ranks by frequency, 0 for the most frequent word.

    Args:
        vocabulary_size: int, number of words in the vocabulary, V.
        num_sampled: int, sample size S; if it is V or more, the softmax is always over all words.
        seed: optional int; makes the sequence of samples reproducible.

    Call arguments: `vectors` float (..., P), hidden states that predict words; `targets` int (...), ids of the target
    words, -1 for no target. Returns the log-probabilities, float32 (...), 0 where there is no target.

    Raises:
        ValueError: If `num_sampled` is less than 1.

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
        """Create the output embeddings and biases of all words."""
        width = get_width(vectors_shape)
        initializer = keras.initializers.RandomNormal(stddev=width**-0.5)
        self.kernel = self.add_weight(shape=(self.vocabulary_size, width), initializer=initializer, name="kernel")
        self.bias = self.add_weight(shape=(self.vocabulary_size,), initializer="zeros", name="bias")

    def call(self, vectors: Tensor, targets: Tensor, training: bool = False) -> Tensor:
        """Compute the log-probabilities of the targets, over a sample of words if `training`."""
        shape = ops.shape(targets)
        x = as_rows(vectors)  # (N, P)
        targets = ops.cast(ops.reshape(targets, (-1,)), "int32")  # (N,)
        ids = ops.maximum(targets, 0)
        if training and self.num_sampled < self.vocabulary_size:
            sample, next_arrival = draw_words(self.vocabulary_size, self.num_sampled, self.seed_generator)
            log_probabilities = self.among(x, ids, sample, next_arrival)
        else:
            logits = self._compute_logits(x, self.kernel, self.bias)  # (N, V)
            target_logits = ops.take_along_axis(logits, ids[:, None], axis=1)[:, 0]
            log_probabilities = target_logits - ops.logsumexp(logits, axis=1)
        return ops.reshape(ops.where(targets >= 0, log_probabilities, 0.0), shape)

    def among(self, vectors: Tensor, targets: Tensor, sample: Tensor, time: Tensor) -> Tensor:
        """Return each target's log-probability, float32 (N,), in a softmax over the target and a sample of words.

        Args:
            vectors: float (N, P), hidden states that predict the targets.
            targets: int (N,), ids of the target words.
            sample: int (S,), word ids returned by `draw_words`.
            time: float32 (), time t returned by `draw_words`.
        """
        corrections = [
            log_inclusion_probabilities(ranks, self.vocabulary_size, time) for ranks in (targets, sample)
        ]  # (N,), (S,)
        target_kernel = ops.cast(ops.take(self.kernel, targets, axis=0), vectors.dtype)  # (N, P)
        target_logits = ops.cast(ops.sum(vectors * target_kernel, axis=1), "float32") - corrections[0]
        target_logits = target_logits + ops.cast(ops.take(self.bias, targets), "float32")  # (N,)
        sample_kernel, sample_bias = (ops.take(weight, sample, axis=0) for weight in (self.kernel, self.bias))
        sample_logits = self._compute_logits(vectors, sample_kernel, sample_bias) - corrections[1]  # (N, S)
        sample_logits = ops.where(targets[:, None] == sample, _EXCLUDED, sample_logits)
        return target_logits - ops.logsumexp(ops.concatenate([target_logits[:, None], sample_logits], axis=1), axis=1)

    def _compute_logits(self, vectors: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        """Return the logits, float32 (N, R), of vectors (N, P) for the R words with rows in `kernel` and `bias`."""
        logits = ops.matmul(vectors, ops.transpose(ops.cast(kernel, vectors.dtype)))
        return ops.cast(logits, "float32") + ops.cast(bias, "float32")

    def compute_output_spec(self, vectors: Tensor, targets: Tensor, training: bool = False) -> keras.KerasTensor:
        """Return the output spec, which is float32 under every dtype policy."""
        return keras.KerasTensor(targets.shape, "float32")
