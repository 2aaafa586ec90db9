"""Losses and metrics for embeddings of matching texts, which follow one another in a batch.

Letters in shapes: B groups of K texts in a batch of KB texts, H features. A group is a pair, or a pair and hard
negatives: texts that do not match the first text of the pair.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from lmzoo.common.arguments import is_number, require
from lmzoo.common.tensor_types import Tensor
from lmzoo.layers import unit_vectors
from lmzoo.training.metrics import PearsonCorrelation


def candidate_cosines(vectors: Tensor, group_size: int | Tensor = 2) -> Tensor:
    """Return the cosines between the first texts of all groups and the other texts of all groups.

    Args:
        vectors: float (KB, H), embeddings, which need not be normalized.
        group_size: int, number of texts in a group, K.

    Returns:
        The cosines, float32 (B, (K - 1)B): row i is for the first text of group i, and column kB + j for text k + 1 of
        group j, all counted from 0.
    """
    groups = ops.reshape(unit_vectors(vectors), (-1, group_size, vectors.shape[-1]))  # (B, K, H)
    candidates = ops.reshape(ops.transpose(groups[:, 1:], (1, 0, 2)), (-1, vectors.shape[-1]))  # ((K - 1)B, H)
    return ops.matmul(groups[:, 0], ops.transpose(candidates))


def _get_group_ids(text_ids: Tensor) -> Tensor:
    """Return the ids of each group's texts, int (B, K).

    Args:
        text_ids: int (2B,), the id of each text of the pairs; or (KB, K), for each text the ids of its whole group.
    """
    if len(text_ids.shape) == 1:
        return ops.reshape(text_ids, (-1, 2))
    group_size = ops.shape(text_ids)[1]
    return ops.reshape(text_ids, (-1, group_size, group_size))[:, 0]


def _score_candidates(text_ids: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Score the candidate partners of the first and the second text of each group.

    The candidates for a first text are the second texts and the negatives of all groups; the candidates for a second
    text are the first texts. A candidate other than the partner is excluded if it equals the text or its partner, or is
    the partner of an equal text, since it matches the text as well.

    Args:
        text_ids: int (2B,) or (KB, K), ids of the texts, the same for equal texts; see `MultipleNegativesRanking`.
        vectors: float (KB, H), embeddings of the texts.

    Returns:
        The cosines, float32 (2B, (K - 1)B), with -1e9 for candidates that are excluded or not available; and whether a
        candidate is the partner, bool (2B, (K - 1)B). Rows are for the first and the second text of each group in turn.
        Columns are for the candidates: the other text of the pair in each of the B groups, then the negatives.
    """
    ids = _get_group_ids(text_ids)  # (B, K)
    group_size = 2 if len(text_ids.shape) == 1 else ops.shape(ids)[1]
    cosines = candidate_cosines(vectors, group_size)  # (B, (K - 1)B)
    num_groups, num_candidates = ops.shape(cosines)
    candidate_ids = ops.reshape(ops.transpose(ids[:, 1:]), (-1,))  # ((K - 1)B,)
    first_ids = ids[:, 0]
    second_ids = ids[:, 1]
    group_indices = ops.arange(num_groups)
    is_same_group = group_indices[:, None] == group_indices  # (B, B)
    has_equal_partner = second_ids[:, None] == second_ids  # (B, B)
    has_equal_first = first_ids[:, None] == first_ids  # (B, B)
    # Negatives are not candidates for second texts.
    all_negatives = ops.ones((num_groups, num_candidates - num_groups), "bool")  # (B, (K - 2)B)
    is_partner = ops.concatenate([is_same_group, ~all_negatives], axis=1)  # (B, (K - 1)B)
    excluded_for_firsts = (
        (second_ids[:, None] == candidate_ids)
        | (first_ids[:, None] == candidate_ids)
        | ops.concatenate([has_equal_first, ~all_negatives], axis=1)
    )
    excluded_for_seconds = ops.concatenate(
        [has_equal_first | (second_ids[:, None] == first_ids) | has_equal_partner, all_negatives], axis=1
    )
    second_cosines = ops.concatenate(
        [ops.transpose(cosines[:, :num_groups]), ops.zeros((num_groups, num_candidates - num_groups), "float32")],
        axis=1,
    )
    masked_cosines = [
        ops.where(is_excluded & ~is_partner, -1e9, scores)
        for is_excluded, scores in ((excluded_for_firsts, cosines), (excluded_for_seconds, second_cosines))
    ]
    return ops.reshape(ops.stack(masked_cosines, axis=1), (-1, num_candidates)), ops.repeat(is_partner, 2, axis=0)


def _spread_over_groups(values: Tensor, text_ids: Tensor) -> Tensor:
    """Return a value for each text, float (KB,), given values of the first and second text of each group.

    In groups of more than two texts, each text gets the mean of the group's two values.

    Args:
        values: float (2B,), values of first and second texts in turn.
        text_ids: int (2B,) or (KB, K), ids of the texts.
    """
    if len(text_ids.shape) == 1:
        return values
    means = ops.mean(ops.reshape(values, (-1, 2)), axis=1, keepdims=True)  # (B, 1)
    return ops.reshape(means * ops.ones_like(_get_group_ids(text_ids), "float32"), (-1,))


@keras.saving.register_keras_serializable(package="lmzoo")
class MultipleNegativesRanking(keras.losses.Loss):
    """Contrastive loss with in-batch negatives: the cross-entropy of picking each text's partner from the whole batch.

    Scores are cosines divided by a temperature, as in SimCSE (Gao et al., 2021, https://arxiv.org/abs/2104.08821). The
    loss is the mean of both directions, first to second text and back, as in CLIP (Radford et al., 2021,
    https://arxiv.org/abs/2103.00020). In one direction it is the loss of Henderson et al. (2017,
    https://arxiv.org/abs/1705.00652). A candidate is not used as a negative if it equals the text or its partner, or is
    the partner of an equal text.

    A group may hold hard negatives after its pair: texts that do not match its first text. They are additional
    candidates for the first texts of all groups (Karpukhin et al., 2020, https://arxiv.org/abs/2004.04906).

    The weight of a pair scales the two terms of this pair; its texts remain negatives for other pairs.

    Args:
        temperature: float above 0; SimCSE uses 0.05, which is `scale=20` in sentence-transformers.
        symmetric: bool, whether to average both directions; if False, only the partners of first texts are picked.
        reduction: str, reduction of `keras.losses.Loss`.
        name: str, name of the loss.

    Call arguments: `y_true`, for pairs int (2B,), ids of the texts, the same for equal texts; for groups of K texts int
    (KB, K), where the row of a text holds the ids of its whole group; `y_pred` float (KB, H), their embeddings;
    `sample_weight` (KB,), the same for all texts of a group.

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
        symmetric: bool = True,
    ) -> None:
        super().__init__(name=name, reduction=reduction)
        require(is_number(temperature) and temperature > 0, "temperature", "a positive number", temperature)
        require(isinstance(symmetric, bool), "symmetric", "a bool", symmetric)
        self.temperature = temperature
        self.symmetric = symmetric

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the loss of each text, float32 (KB,).

        If not symmetric, or for groups of more than two texts, the loss is the same for all texts of a group.
        """
        cosines, is_partner = _score_candidates(y_true, y_pred)
        cosines_with_partners = ops.sum(ops.where(is_partner, cosines, 0.0), axis=-1, keepdims=True)  # (2B, 1)
        # Computed from margins: log(sum exp(s)) - s_partner would be only rounding errors for confident predictions.
        margins = ops.where(is_partner, -1e9, (cosines - cosines_with_partners) / self.temperature)  # (2B, (K - 1)B)
        losses = ops.softplus(ops.logsumexp(margins, axis=-1))  # (2B,)
        if not self.symmetric:
            losses = ops.repeat(losses[::2], 2)
        return _spread_over_groups(losses, y_true)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return {**super().get_config(), "temperature": self.temperature, "symmetric": self.symmetric}


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
        return ops.square(ops.repeat(partner_cosines(y_pred), 2) - ops.reshape(y_true, (-1,)))


def partner_cosines(vectors: Tensor) -> Tensor:
    """Return the cosine of each pair, float32 (B,), given embeddings (2B, H)."""
    pairs = ops.reshape(unit_vectors(vectors), (-1, 2, vectors.shape[-1]))  # (B, 2, H)
    return ops.sum(pairs[:, 0] * pairs[:, 1], axis=-1)


@keras.saving.register_keras_serializable(package="lmzoo")
class PairAccuracy(keras.metrics.Mean):
    """Fraction of first and second texts whose partner has the highest cosine of all candidates in the batch.

    The candidates for a first text are all second texts and hard negatives; the candidates for a second text are all
    first texts, except candidates that `MultipleNegativesRanking` excludes. The accuracy depends on the batch size:
    more texts make the task harder.

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
        """Add a batch of ids, embeddings float (KB, H) and weights (KB,), as for `MultipleNegativesRanking`."""
        text_ids = ops.convert_to_tensor(y_true)
        cosines, is_partner = _score_candidates(text_ids, ops.convert_to_tensor(y_pred))
        is_correct = ops.argmax(cosines, axis=-1) == ops.argmax(is_partner, axis=-1)  # (2B,)
        accuracies = _spread_over_groups(ops.cast(is_correct, "float32"), text_ids)  # (KB,)
        super().update_state(accuracies, sample_weight=sample_weight)


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
        super().update_state(ops.reshape(y_true, (-1,))[::2], partner_cosines(y_pred), weights)
