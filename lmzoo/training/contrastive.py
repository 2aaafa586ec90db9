"""Losses and metrics of paired text vectors: texts 2i and 2i + 1 of a batch are partners.

B: pairs in a batch, of 2B texts; H: features.
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
    """Return the cosines of all first texts with all second texts, for vectors (2B, H) of any length.

    Returns:
        Float32 (B, B), with row i for the first text of pair i; the pairs are on the diagonal.
    """
    pairs = ops.reshape(unit_vectors(vectors), (-1, 2, vectors.shape[-1]))  # (B, 2, H)
    return ops.matmul(pairs[:, 0], ops.transpose(pairs[:, 1]))


def _candidates(texts: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the candidates among which each text must find its partner: the other sides of all pairs.

    Args:
        texts: (2B,), a number for each text, the same for equal texts.
        vectors: float (2B, H).

    Returns:
        Cosines, float32 (2B, B), with column i for pair i, and -1e9 where a candidate is neither the partner nor wrong,
        since it equals the text itself or its partner, or is the partner of an equal text; and the partners, bool
        (2B, B).
    """
    cosines = pair_cosines(vectors)  # (B, B)
    sides = ops.reshape(texts, (-1, 2))  # (B, 2)
    firsts, seconds = sides[:, 0], sides[:, 1]
    index = ops.arange(ops.shape(cosines)[0])
    partners = index[:, None] == index  # (B, B)
    rows = []
    for own, other, scores in ((firsts, seconds, cosines), (seconds, firsts, ops.transpose(cosines))):
        right = (other[:, None] == other) | (own[:, None] == other) | (own[:, None] == own)
        rows.append(ops.where(right & ~partners, -1e9, scores))
    shape = (-1, ops.shape(cosines)[0])
    return ops.reshape(ops.stack(rows, axis=1), shape), ops.repeat(partners, 2, axis=0)


@keras.saving.register_keras_serializable(package="lmzoo")
class MultipleNegativesRanking(keras.losses.Loss):
    """The cross-entropy of finding each text's partner among the other sides of all pairs of the batch.

    Scores are cosines divided by a temperature. If only first texts looked for second ones, this would be the loss of
    Henderson et al. (2017, https://arxiv.org/abs/1705.00652) on the scores of SimCSE (Gao et al., 2021,
    https://arxiv.org/abs/2104.08821). Here both sides look for each other, and the loss is the mean of both
    directions, as in CLIP (Radford et al., 2021, https://arxiv.org/abs/2103.00020). A candidate that equals the text
    itself or its partner, or that is the partner of an equal text, does not count as wrong.

    The weight of a pair scales its own two terms; its texts remain wrong answers for others.

    Args:
        temperature: float above 0; 0.05 is that of SimCSE, and of sentence-transformers as `scale=20`.
        reduction: as in `keras.losses.Loss`.
        name: str.

    Call arguments: `y_true` (2B,), a number for each text, the same for equal texts; `y_pred` float (2B, H), the
    vectors; `sample_weight` (2B,), the same for both texts of a pair.

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
        """Return the loss of each text: float32 (2B,)."""
        cosines, partners = _candidates(y_true, y_pred)
        found = ops.sum(ops.where(partners, cosines, 0.0), axis=-1, keepdims=True)  # (2B, 1)
        # log(sum exp(s)) - s_partner is zero and rounding errors where the partner is found.
        margins = ops.where(partners, -1e9, (cosines - found) / self.temperature)  # (2B, B)
        return ops.softplus(ops.logsumexp(margins, axis=-1))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "temperature": self.temperature}


@keras.saving.register_keras_serializable(package="lmzoo")
class PairCosineError(keras.losses.Loss):
    """The squared difference of a pair's cosine and its label (Reimers and Gurevych, 2019, section 3).

    https://arxiv.org/abs/1908.10084

    Call arguments: `y_true` float (2B,), each pair's label twice; `y_pred` float (2B, H), the vectors; `sample_weight`
    (2B,).

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
        """Return the loss of each text: float32 (2B,), the same for both of a pair."""
        return ops.square(ops.repeat(_cosines_of_partners(y_pred), 2) - ops.reshape(y_true, (-1,)))


def _cosines_of_partners(vectors: Tensor) -> Tensor:
    """Return the cosine of each pair, float32 (B,)."""
    pairs = ops.reshape(unit_vectors(vectors), (-1, 2, vectors.shape[-1]))  # (B, 2, H)
    return ops.sum(pairs[:, 0] * pairs[:, 1], axis=-1)


@keras.saving.register_keras_serializable(package="lmzoo")
class PairAccuracy(keras.metrics.Mean):
    """The share of texts whose partner is the nearest by cosine among the other sides of all pairs of the batch.

    It depends on the batch size: the more pairs, the harder.

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
        """Add a batch; see `MultipleNegativesRanking`."""
        cosines, partners = _candidates(ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred))
        found = ops.argmax(cosines, axis=-1) == ops.argmax(partners, axis=-1)  # (2B,)
        super().update_state(found, sample_weight=sample_weight)


@keras.saving.register_keras_serializable(package="lmzoo")
class PairCorrelation(PearsonCorrelation):
    """Pearson's correlation of the cosines of pairs and their labels, over all pairs.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased", objective="cosine")
    embedder.compile(metrics=[lmzoo.training.PairCorrelation()])
    embedder.evaluate((["A dog runs.", "A man eats."], ["A dog plays.", "It rains."]), [0.7, 0.0], verbose=0)
    ```
    """

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch; see `PairCosineError`."""
        weights = None if sample_weight is None else ops.reshape(sample_weight, (-1,))[::2]
        super().update_state(ops.reshape(y_true, (-1,))[::2], _cosines_of_partners(y_pred), weights)
