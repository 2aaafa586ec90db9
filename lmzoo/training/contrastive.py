"""Losses and metrics for embeddings of paired texts, where texts 2i and 2i + 1 of a batch are partners.

Letters in shapes: B pairs in a batch of 2B texts, H features.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import is_number, require
from lmzoo.common.tensor_types import Tensor
from lmzoo.layers import unit_vectors
from lmzoo.training.metrics import PearsonCorrelation


def pair_cosines(vectors: Tensor) -> Tensor:
    """Return the cosines between all first texts and all second texts.

    Args:
        vectors: float (2B, H), embeddings, which need not be normalized.

    Returns:
        Float32 (B, B), with row i for the first text of pair i and column j for the second text of pair j.
    """
    pairs = ops.reshape(unit_vectors(vectors), (-1, 2, vectors.shape[-1]))  # (B, 2, H)
    return ops.matmul(pairs[:, 0], ops.transpose(pairs[:, 1]))


def _score_candidates(texts: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Score the candidate partners of each text: the opposite texts of all pairs.

    A candidate is excluded if it equals the text or its partner, or is the partner of an equal text: such a
    candidate is not the partner, but not wrong either.

    Args:
        texts: int (2B,), ids of the texts, the same for equal texts.
        vectors: float (2B, H), their embeddings.

    Returns:
        Cosines, float32 (2B, B), with column i for pair i and -1e9 for excluded candidates; and whether a candidate is
        the partner, bool (2B, B).
    """
    cosines = pair_cosines(vectors)  # (B, B)
    pair_ids = ops.reshape(texts, (-1, 2))  # (B, 2)
    first_ids = pair_ids[:, 0]
    second_ids = pair_ids[:, 1]
    index = ops.arange(ops.shape(cosines)[0])
    is_partner = index[:, None] == index  # (B, B)
    masked_cosines = []
    for ids, partner_ids, scores in ((first_ids, second_ids, cosines), (second_ids, first_ids, ops.transpose(cosines))):
        is_excluded = (partner_ids[:, None] == partner_ids) | (ids[:, None] == partner_ids) | (ids[:, None] == ids)
        masked_cosines.append(ops.where(is_excluded & ~is_partner, -1e9, scores))
    shape = (-1, ops.shape(cosines)[0])
    return ops.reshape(ops.stack(masked_cosines, axis=1), shape), ops.repeat(is_partner, 2, axis=0)


@keras.saving.register_keras_serializable(package="lmzoo")
class MultipleNegativesRanking(keras.losses.Loss):
    """Contrastive loss with in-batch negatives: the cross-entropy of picking each text's partner from all pairs.

    Scores are cosines divided by a temperature, as in SimCSE (Gao et al., 2021, https://arxiv.org/abs/2104.08821). The
    loss is the mean of both directions, first to second text and back, as in CLIP (Radford et al., 2021,
    https://arxiv.org/abs/2103.00020). In one direction it is the loss of Henderson et al. (2017,
    https://arxiv.org/abs/1705.00652). A candidate that equals the text or its partner, or is the partner of an equal
    text, is not used as a negative.

    The weight of a pair scales its own two terms; its texts remain negatives for other pairs.

    Args:
        temperature: float above 0; SimCSE uses 0.05, which is `scale=20` in sentence-transformers.
        reduction: str, reduction of `keras.losses.Loss`.
        name: str, name of the loss.

    Call arguments: `y_true` int (2B,), ids of the texts, the same for equal texts; `y_pred` float (2B, H), their
    embeddings; `sample_weight` (2B,), the same for both texts of a pair.

    Example:

    ```python
    import numpy as np
    from lmzoo.training import MultipleNegativesRanking

    vectors = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], "float32")  # two texts, then their partners
    float(MultipleNegativesRanking(temperature=1.0)(np.arange(4), vectors))
    ```
    """

    def __init__(
        self,
        temperature: float = 0.05,
        reduction: str = "sum_over_batch_size",
        name: str = "multiple_negatives_ranking",
    ) -> None:
        super().__init__(name=name, reduction=reduction)
        require(is_number(temperature) and temperature > 0, "temperature", "a positive number", temperature)
        self.temperature = temperature

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the loss of each text, float32 (2B,)."""
        cosines, is_partner = _score_candidates(y_true, y_pred)
        partner_cosines = ops.sum(ops.where(is_partner, cosines, 0.0), axis=-1, keepdims=True)  # (2B, 1)
        # Computed from margins: log(sum exp(s)) - s_partner would be only rounding errors for confident predictions.
        margins = ops.where(is_partner, -1e9, (cosines - partner_cosines) / self.temperature)  # (2B, B)
        return ops.softplus(ops.logsumexp(margins, axis=-1))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return {**super().get_config(), "temperature": self.temperature}


@keras.saving.register_keras_serializable(package="lmzoo")
class PairCosineError(keras.losses.Loss):
    """Squared difference between a pair's cosine and its label (Reimers and Gurevych, 2019, section 3).

    https://arxiv.org/abs/1908.10084

    Call arguments: `y_true` float (2B,), the label of each pair twice; `y_pred` float (2B, H), the embeddings;
    `sample_weight` (2B,).

    Example:

    ```python
    import numpy as np
    from lmzoo.training import PairCosineError

    vectors = np.array([[1, 0], [0, 1]], "float32")  # a text and its partner
    float(PairCosineError()(np.array([0.5, 0.5], "float32"), vectors))  # 0.25
    ```
    """

    def __init__(self, reduction: str = "sum_over_batch_size", name: str = "pair_cosine_error") -> None:
        super().__init__(name=name, reduction=reduction)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the loss of each text, float32 (2B,), equal for both texts of a pair."""
        return ops.square(ops.repeat(_partner_cosines(y_pred), 2) - ops.reshape(y_true, (-1,)))


def _partner_cosines(vectors: Tensor) -> Tensor:
    """Return the cosine of each pair, float32 (B,)."""
    pairs = ops.reshape(unit_vectors(vectors), (-1, 2, vectors.shape[-1]))  # (B, 2, H)
    return ops.sum(pairs[:, 0] * pairs[:, 1], axis=-1)


@keras.saving.register_keras_serializable(package="lmzoo")
class PairAccuracy(keras.metrics.Mean):
    """Fraction of texts whose partner has the highest cosine among the opposite texts in the batch.

    It depends on the batch size: more pairs make the task harder.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased")
    embedder.compile(metrics=[lmzoo.training.PairAccuracy()])
    embedder.evaluate((["When do you open?", "How can I pay?"], ["At nine.", "By card."]), verbose=0)
    ```
    """

    def __init__(self, name: str = "accuracy", dtype: str | keras.DTypePolicy | None = None) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch of text ids int (2B,), embeddings float (2B, H) and weights (2B,)."""
        cosines, is_partner = _score_candidates(ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred))
        is_correct = ops.argmax(cosines, axis=-1) == ops.argmax(is_partner, axis=-1)  # (2B,)
        super().update_state(is_correct, sample_weight=sample_weight)


@keras.saving.register_keras_serializable(package="lmzoo")
class PairCorrelation(PearsonCorrelation):
    """Pearson correlation between the cosines and the labels of all pairs.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased", objective="cosine")
    embedder.compile(metrics=[lmzoo.training.PairCorrelation()])
    embedder.evaluate((["A dog runs.", "A man eats."], ["A dog plays.", "It rains."]), [0.7, 0.0], verbose=0)
    ```
    """

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch of labels float (2B,), embeddings float (2B, H) and weights (2B,), as for `PairCosineError`."""
        weights = None if sample_weight is None else ops.reshape(sample_weight, (-1,))[::2]
        super().update_state(ops.reshape(y_true, (-1,))[::2], _partner_cosines(y_pred), weights)
