"""Training of GloVe (Pennington et al., 2014, https://aclanthology.org/D14-1162).

Let x be the number of times that two words occur together (each time counts 1 / d if they are d words apart), w and v
their vectors, and b and c their biases. The loss is the sum over all pairs of words with x > 0 of

    f(x) (w . v + b + c - log x)^2,    f(x) = min(1, (x / x_max)^alpha)

The vector of a word is the sum of its vectors as the first and as the second word of a pair.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.common.progress import progress_over
from lmzoo.common.tensor_types import Tensor
from lmzoo.training.optimizers import Adagrad

_MAX_PAIRS = 1 << 22  # pairs of occurrences counted at once


@keras.saving.register_keras_serializable(package="lmzoo")
class GloveLoss(keras.losses.Loss):
    """GloVe's weighted squared error of the logarithms of co-occurrence counts (Pennington et al., 2014, equation 8).

    Call arguments: `y_true`, float (B, 1), the counts of B pairs of words, above 0; and `y_pred`, float (B, 1), the
    predicted logarithms of the counts: the dot product of the two words' vectors plus the biases of both words.

    Args:
        x_max: positive float; pairs with at least this count have weight 1.
        alpha: float of at least 0; pairs with a lower count have the weight `(count / x_max) ** alpha`.
        reduction: how Keras reduces the losses of pairs; by default to their sum.
        name: name of the loss.

    Example:

    ```python
    import numpy as np
    from lmzoo.static_vectors import GloveLoss

    loss = GloveLoss(x_max=100)
    float(loss(np.array([[100.0], [6.25]]), np.array([[0.0], [0.0]])))  # log(100)^2 + log(6.25)^2 / 8
    ```
    """

    def __init__(
        self, x_max: float = 100.0, alpha: float = 0.75, reduction: str | None = "sum", name: str = "glove_loss"
    ) -> None:
        require(is_number(x_max) and x_max > 0, "x_max", "a positive number", x_max)
        require(is_number(alpha, 0), "alpha", "a number of at least 0", alpha)
        super().__init__(name=name, reduction=reduction)
        self.x_max = float(x_max)
        self.alpha = float(alpha)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the loss of each pair, float (B,)."""
        counts = ops.cast(y_true, y_pred.dtype)
        weights = ops.minimum(ops.power(counts / self.x_max, self.alpha), 1.0)
        return ops.sum(weights * ops.square(y_pred - ops.log(counts)), axis=-1)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return {**super().get_config(), "x_max": self.x_max, "alpha": self.alpha}


def count_pairs(
    texts: Sequence[np.ndarray], vocabulary_size: int, window: int, verbose: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count how often pairs of words occur together in a text, up to `window` words apart.

    An occurrence of two words that are d words apart adds 1 / d to their count, in both orders.

    Args:
        texts: for each text, the ids of its T words, int (T,); negative for words outside of the vocabulary.
        vocabulary_size: int, number of words in the vocabulary.
        window: int, maximum distance between two words.
        verbose: whether to show progress.

    Returns:
        The ids of the first and of the second words of n pairs, int32 (n,) each, and the pairs' counts, float64 (n,).
    """
    from scipy.sparse import coo_array, csr_array

    shape = (vocabulary_size, vocabulary_size)
    pair_counts = csr_array(shape)
    chunks: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add_chunks() -> None:
        nonlocal pair_counts
        if chunks:
            rows, columns, counts = (np.concatenate(arrays) for arrays in zip(*chunks, strict=True))
            pair_counts = pair_counts + coo_array((counts, (rows, columns)), shape).tocsr()
            chunks.clear()

    num_pairs = 0
    with progress_over(texts, "Counting pairs", "texts", verbose) as tracked_texts:
        for ids in tracked_texts:
            for chunk in _iterate_pairs(ids, window):
                chunks.append(chunk)
                num_pairs += len(chunk[0])
                if num_pairs > _MAX_PAIRS:
                    add_chunks()
                    num_pairs = 0
    add_chunks()
    symmetric_counts = (pair_counts + pair_counts.T).tocoo()
    return symmetric_counts.row.astype("int32"), symmetric_counts.col.astype("int32"), symmetric_counts.data


def _iterate_pairs(ids: np.ndarray, window: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield `(first ids, second ids, counts)` for chunks of at most `_MAX_PAIRS` pairs of words in a text."""
    for distance in range(1, min(window, len(ids) - 1) + 1):
        all_first_ids = ids[:-distance]
        all_second_ids = ids[distance:]
        for start in range(0, len(all_first_ids), _MAX_PAIRS):
            first_ids = all_first_ids[start : start + _MAX_PAIRS]
            second_ids = all_second_ids[start : start + _MAX_PAIRS]
            is_counted = (first_ids >= 0) & (second_ids >= 0)
            yield first_ids[is_counted], second_ids[is_counted], np.full(is_counted.sum(), 1 / distance)


def train_glove(
    texts: Sequence[np.ndarray],
    vocabulary_size: int,
    hidden_dim: int,
    window: int,
    epochs: int,
    seed: int,
    verbose: bool,
    x_max: float = 100.0,
    alpha: float = 0.75,
    learning_rate: float = 0.05,
    batch_size: int = 4096,
) -> np.ndarray:
    """Train GloVe with Keras, and return the vectors of all words, float32 (V, H).

    Args:
        texts: for each text, the ids of its T words, int (T,); negative for words outside of the vocabulary.
        vocabulary_size: int, number V of words in the vocabulary.
        hidden_dim: int, width H of the vectors.
        window: int, maximum distance between two words that occur together.
        epochs: int, passes over the pairs of words.
        seed: int, seed of the initial vectors and the order of the pairs.
        verbose: whether to show progress.
        x_max: positive float; see `GloveLoss`.
        alpha: float; see `GloveLoss`.
        learning_rate: positive float, learning rate of Adagrad.
        batch_size: int, pairs per batch.

    Raises:
        ValueError: If an argument is out of range, or no two words occur together.
    """
    require(is_number(learning_rate) and learning_rate > 0, "learning_rate", "a positive number", learning_rate)
    require(is_integer(batch_size, 1), "batch_size", "a positive integer", batch_size)
    loss = GloveLoss(x_max, alpha)
    first_ids, second_ids, counts = count_pairs(texts, vocabulary_size, window, verbose)
    if not len(counts):
        advice = "pass longer texts, or a lower `min_frequency`"
        raise ValueError(f"No two words of the vocabulary occur together: {advice}.")
    order = np.random.default_rng(seed).permutation(len(counts))  # one order for all epochs, as in the original
    model = _make_model(vocabulary_size, hidden_dim, seed)
    model.compile(Adagrad(learning_rate, initial_accumulator_value=1.0, global_clipnorm=None), loss)
    inputs = (first_ids[order], second_ids[order])
    targets = counts[order, None].astype("float32")
    model.fit(inputs, targets, batch_size, epochs, verbose=1 if verbose else 0, shuffle=False)
    tables = (model.get_layer(name).embeddings for name in ("first_vector", "second_vector"))
    return np.asarray(sum(map(ops.convert_to_numpy, tables)), "float32")


def _make_model(vocabulary_size: int, hidden_dim: int, seed: int) -> keras.Model:
    """Return a model that computes w . v + b + c, float (B, 1), for B pairs of words, given as ids, int32 (B,) each."""
    limit = 0.5 / hidden_dim
    seeds = itertools.count(seed)

    def embed(ids: Tensor, width: int, name: str) -> Tensor:
        initializer = keras.initializers.RandomUniform(-limit, limit, next(seeds))
        return keras.layers.Embedding(vocabulary_size, width, initializer, name=name)(ids)

    first_ids = keras.Input((), dtype="int32", name="first")
    second_ids = keras.Input((), dtype="int32", name="second")
    product = ops.sum(
        embed(first_ids, hidden_dim, "first_vector") * embed(second_ids, hidden_dim, "second_vector"),
        axis=1,
        keepdims=True,
    )  # (B, 1)
    scores = product + embed(first_ids, 1, "first_bias") + embed(second_ids, 1, "second_bias")
    return keras.Model((first_ids, second_ids), scores)
