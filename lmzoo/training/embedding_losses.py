"""Losses for embeddings of graded pairs and of triplets, and for embeddings that may be truncated.

Letters in shapes: B pairs or triplets, whose texts follow one another in a batch of 2B or 3B texts; H features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.common.tensor_types import Tensor
from lmzoo.layers import unit_vectors
from lmzoo.training.contrastive import partner_cosines

_MIN_SQUARED_DISTANCE = 1e-24  # the gradient of a square root is infinite at 0


@keras.saving.register_keras_serializable(package="lmzoo")
class CosentLoss(keras.losses.Loss):
    """Ranking loss for pairs with graded labels: pairs with higher labels should have higher cosines.

    It is CoSENT (Huang et al., 2024, https://doi.org/10.1109/TASLP.2024.3402087): the logarithm of 1 plus the sum of
    `exp((cosine_i - cosine_j) / temperature)` over all pairs i and j of the batch with `label_i < label_j`. Only the
    order of the labels matters.

    Args:
        temperature: float above 0; 0.05 is `scale=20` in sentence-transformers.
        reduction: str, as for `keras.losses.Loss`; the loss has a single value per batch to reduce.
        name: str, name of the loss.

    Call arguments: `y_true` (2B,), the label of each pair twice; `y_pred` float (2B, H), the embeddings.

    Example:

    ```python
    import numpy as np
    from lmzoo.training import CosentLoss

    vectors = np.array([[1, 0], [1, 0], [1, 0], [0, 1]], "float32")  # two pairs, with the cosines 1 and 0
    float(CosentLoss(temperature=1.0)(np.array([5, 5, 3, 3]), vectors))  # log(1 + exp(-1)), 0.31
    ```
    """

    def __init__(
        self, temperature: float = 0.05, reduction: str = "sum_over_batch_size", name: str = "cosent_loss"
    ) -> None:
        super().__init__(name=name, reduction=reduction)
        require(is_number(temperature) and temperature > 0, "temperature", "a positive number", temperature)
        self.temperature = temperature

    def similarities(self, vectors: Tensor) -> Tensor:
        """Return the similarity of each pair, float32 (B,)."""
        return partner_cosines(vectors)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the loss of the batch, float32 ()."""
        scores = self.similarities(y_pred) / self.temperature  # (B,)
        labels = ops.reshape(y_true, (-1,))[::2]  # (B,)
        is_lower = labels[:, None] < labels  # (B, B)
        margins = ops.where(is_lower, scores[:, None] - scores, -1e9)  # (B, B)
        return ops.softplus(ops.logsumexp(margins))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return {**super().get_config(), "temperature": self.temperature}


@keras.saving.register_keras_serializable(package="lmzoo")
class AngleLoss(CosentLoss):
    """Ranking loss for pairs with graded labels that compares angles in the complex plane instead of cosines.

    It is the angle objective of AnglE (Li and Li, 2024, https://arxiv.org/abs/2309.12871), in the form of
    sentence-transformers: `CosentLoss` with other similarities. The halves of a vector of length 1 are the real and the
    imaginary parts of complex numbers, and the similarity is the absolute value of the sum of the real and the
    imaginary part of their dot product. Where a cosine saturates, near -1 and 1, an angle still has a gradient.

    Args:
        temperature: float above 0; 0.05 is `scale=20` in sentence-transformers.
        reduction: str, as for `keras.losses.Loss`; the loss has a single value per batch to reduce.
        name: str, name of the loss.

    Call arguments: as for `CosentLoss`.

    Example:

    ```python
    import numpy as np
    from lmzoo.training import AngleLoss

    vectors = np.array([[1, 0], [1, 0], [1, 0], [0, 1]], "float32")
    float(AngleLoss()(np.array([5, 5, 3, 3]), vectors))
    ```
    """

    def __init__(
        self, temperature: float = 0.05, reduction: str = "sum_over_batch_size", name: str = "angle_loss"
    ) -> None:
        super().__init__(temperature, reduction, name)

    def similarities(self, vectors: Tensor) -> Tensor:
        """Return the similarity of each pair, float32 (B,)."""
        width = vectors.shape[-1]
        padded_vectors = ops.pad(unit_vectors(vectors), [[0, 0], [0, width % 2]])
        # (B, 2, 2, H / 2): pairs, real and imaginary parts
        parts = ops.reshape(padded_vectors, (-1, 2, 2, -(-width // 2)))
        first_vectors = parts[:, 0]
        second_vectors = parts[:, 1]
        real_part = ops.sum(first_vectors * second_vectors, axis=(1, 2))  # (B,)
        imaginary_part = ops.sum(
            first_vectors[:, 1] * second_vectors[:, 0] - first_vectors[:, 0] * second_vectors[:, 1], axis=-1
        )  # (B,)
        return ops.abs(real_part + imaginary_part)


def _split_triplets(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the anchors, the positives and the negatives of a batch, each (B, H)."""
    triplets = ops.reshape(vectors, (-1, 3, vectors.shape[-1]))  # (B, 3, H)
    return triplets[:, 0], triplets[:, 1], triplets[:, 2]


@keras.saving.register_keras_serializable(package="lmzoo")
class TripletLoss(keras.losses.Loss):
    """Hinge loss that moves an anchor closer to a positive text than to a negative text, by a margin.

    The loss is `max(0, distance(anchor, positive) - distance(anchor, negative) + margin)` (Schroff et al., 2015,
    https://arxiv.org/abs/1503.03832). The default distance and margin are from Reimers and Gurevych (2019, section 3).

    Args:
        margin: float above 0. The distance of two vectors of length 1 is at most 2.
        distance: `"euclidean"`, or `"cosine"` for 1 minus the cosine.
        reduction: str, reduction of `keras.losses.Loss`.
        name: str, name of the loss.

    Call arguments: `y_true`, which is ignored; `y_pred` float (3B, H), the embeddings of anchor, positive and negative
    in turn; `sample_weight` (3B,), the same for the three texts of a triplet.

    Example:

    ```python
    import numpy as np
    from lmzoo.training import TripletLoss

    vectors = np.array([[0, 0], [3, 4], [0, 5.5]], "float32")
    float(TripletLoss()(np.zeros(3), vectors))  # 0.5: 5 - 5.5 + 1
    ```
    """

    def __init__(
        self,
        margin: float = 1.0,
        distance: str = "euclidean",
        reduction: str = "sum_over_batch_size",
        name: str = "triplet_loss",
    ) -> None:
        super().__init__(name=name, reduction=reduction)
        require(is_number(margin) and margin > 0, "margin", "a positive number", margin)
        require(distance in ("euclidean", "cosine"), "distance", '"euclidean" or "cosine"', distance)
        self.margin = margin
        self.distance = distance

    def _compute_distances(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the distance between each vector in `x` and the corresponding vector in `y`, float (B,)."""
        if self.distance == "cosine":
            return 1 - ops.sum(unit_vectors(x) * unit_vectors(y), axis=-1)
        return ops.sqrt(ops.maximum(ops.sum(ops.square(x - y), axis=-1), _MIN_SQUARED_DISTANCE))

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the loss of each text, float32 (3B,), equal for the three texts of a triplet."""
        anchors, positives, negatives = _split_triplets(ops.cast(y_pred, "float32"))
        margins = (
            self._compute_distances(anchors, positives) - self._compute_distances(anchors, negatives) + self.margin
        )  # (B,)
        return ops.repeat(ops.relu(margins), 3)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return {**super().get_config(), "margin": self.margin, "distance": self.distance}


@keras.saving.register_keras_serializable(package="lmzoo")
class TripletAccuracy(keras.metrics.Mean):
    """Fraction of triplets whose anchor has a higher cosine with the positive text than with the negative text.

    Example:

    ```python
    import lmzoo

    embedder = lmzoo.models.TextEmbedder.from_preset("bert_nano_en_uncased", objective="triplet")
    embedder.compile(metrics=[lmzoo.training.TripletAccuracy()])
    embedder.evaluate([("When do you open?", "At nine.", "By card.")], verbose=0)
    ```
    """

    def __init__(self, name: str = "accuracy", dtype: str | keras.DTypePolicy | None = None) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch of embeddings float (3B, H) and weights (3B,), as for `TripletLoss`."""
        anchors, positives, negatives = _split_triplets(unit_vectors(ops.convert_to_tensor(y_pred)))
        is_correct = ops.sum(anchors * positives, axis=-1) > ops.sum(anchors * negatives, axis=-1)  # (B,)
        super().update_state(ops.repeat(is_correct, 3), sample_weight=sample_weight)


@keras.saving.register_keras_serializable(package="lmzoo")
class MatryoshkaLoss(keras.losses.Loss):
    """Weighted sum of a loss over several truncations of the same vectors (Kusupati et al., 2022).

    https://arxiv.org/abs/2205.13147. For each width, the vectors are truncated to their first features and scaled to
    length 1. Vectors trained with this loss can be truncated to save memory and time, at little cost in quality.

    Args:
        loss: `keras.losses.Loss` on embeddings, such as `MultipleNegativesRanking`.
        widths: ints, numbers of leading features to train. Include the full width, H, to train the whole vectors as
            well.
        weights: floats, weight of the loss for each width; by default all 1.
        reduction: str, reduction of `keras.losses.Loss`. The reduction of `loss` is not used.
        name: str, name of the loss.

    Call arguments: as for `loss`.

    Example:

    ```python
    import numpy as np
    from lmzoo.training import MatryoshkaLoss, MultipleNegativesRanking

    loss = MatryoshkaLoss(MultipleNegativesRanking(), widths=[8, 4, 2])
    float(loss(np.arange(6), np.random.default_rng(0).normal(size=(6, 8)).astype("float32")))
    ```
    """

    def __init__(
        self,
        loss: keras.losses.Loss,
        widths: Sequence[int],
        weights: Sequence[float] | None = None,
        reduction: str = "sum_over_batch_size",
        name: str = "matryoshka_loss",
    ) -> None:
        super().__init__(name=name, reduction=reduction)
        require(isinstance(loss, keras.losses.Loss), "loss", "a `keras.losses.Loss`", loss)
        self.loss = loss
        self.widths = check_widths("widths", widths)
        loss_weights = [1.0] * len(self.widths) if weights is None else [*weights]
        is_valid = len(loss_weights) == len(self.widths) and all(is_number(weight, 0) for weight in loss_weights)
        require(is_valid, "weights", "a number of at least 0 for each width", weights)
        self.weights = loss_weights

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the weighted sum of the losses, of the shape that `loss` returns.

        Raises:
            ValueError: If the vectors have fewer features than one of the widths.
        """
        check_widths("widths", self.widths, y_pred.shape[-1])
        return sum(
            weight * self.loss.call(y_true, unit_vectors(y_pred[:, :width]))
            for width, weight in zip(self.widths, self.weights, strict=True)
        )

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments, with `loss` serialized."""
        loss = keras.losses.serialize(self.loss)
        return {**super().get_config(), "loss": loss, "widths": self.widths, "weights": self.weights}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Build the loss from the output of `get_config`."""
        return cls(**{**config, "loss": keras.losses.deserialize(config["loss"])})


def check_widths(name: str, widths: Sequence[int], full_width: int | None = None) -> list[int]:
    """Check the widths to which vectors are truncated, and return them as a list.

    Args:
        name: str, name of the argument, for the error message.
        widths: ints, numbers of leading features to keep.
        full_width: int, width of the vectors, or None if unknown.

    Raises:
        ValueError: If `widths` is empty or not a list, or the widths are not distinct positive integers of at most
            `full_width`.
    """
    width_list = [*widths] if isinstance(widths, Sequence) and not isinstance(widths, str) else []
    max_width = math.inf if full_width is None else full_width
    is_valid = all(is_integer(width, 1, max_width) for width in width_list) and len(set(width_list)) == len(width_list)
    limit = "" if full_width is None else f" of at most {full_width}, the width of the vectors"
    require(is_valid and width_list, name, f"a list of distinct positive integers{limit}", widths)
    return width_list
