"""One vector for a text: what the heads of classification, regression and multiple choice read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmzoo.layers import BiLSTMEncoder, ClassificationHead, MeanPooler
from lmzoo.models.backbone import Backbone
from lmzoo.models.family import family_of


@dataclass(frozen=True)
class TextVector:
    """How a task makes one vector of each row, and what it puts on top of it.

    Attributes:
        dropout: rate on the vector in training; None for the backbone's.
        pooling: `"first"`, the backbone's `pooled_output`, or `"mean"`, the mean over the real tokens.
        encoder: `"bilstm"` for LSTMs in both directions over the backbone's vectors, whose outputs' mean is taken; None
            for the backbone alone.
        encoder_dim: width of each direction of the encoder.

    Raises:
        ValueError: for an unknown `pooling` or `encoder`.
    """

    dropout: float | None = None
    pooling: str = "first"
    encoder: str | None = None
    encoder_dim: int = 256

    def __post_init__(self) -> None:
        """Checks what can be chosen."""
        if self.pooling not in ("first", "mean"):
            raise ValueError(f'`pooling` must be "first" or "mean", got {self.pooling!r}.')
        if self.encoder not in (None, "bilstm"):
            raise ValueError(f'`encoder` must be "bilstm" or None, got {self.encoder!r}.')

    @property
    def uses_pooler(self) -> bool:
        """Whether a loss on the vector reaches the backbone's pooler."""
        return self.pooling == "first" and not self.encoder

    def of(self, backbone: Backbone, inputs: dict[str, Any]) -> Any:
        """The vectors of symbolic inputs.

        Args:
            backbone: `lmzoo.models.Backbone`.
            inputs: the backbone's inputs, a dict of (B, T) or (B, T, W).

        Returns:
            Float (B, H), or (B, 2 encoder_dim) with an encoder.
        """
        outputs = backbone(inputs)
        if self.uses_pooler:
            return outputs["pooled_output"]  # (B, H)
        sequence, mask = outputs["sequence_output"], backbone.padding_mask(inputs)  # (B, T, H), (B, T)
        if self.encoder:
            rate, policy = self._rate(backbone), backbone.dtype_policy
            layer = BiLSTMEncoder(self.encoder_dim, dropout=rate, dtype=policy, name="encoder")
            ids = next(inputs[name] for name in ("character_ids", "token_ids") if name in inputs)
            sequence = layer(sequence, ids, mask)  # (B, T, 2 encoder_dim)
        return MeanPooler(dtype=backbone.dtype_policy, name="mean_pooler")(sequence, mask)

    def head(self, backbone: Backbone, outputs: int) -> ClassificationHead:
        """The family's layers on top of the vectors.

        Args:
            backbone: `lmzoo.models.Backbone`.
            outputs: how many numbers to make of each vector.
        """
        own = family_of(backbone).classifier
        rate, policy = self._rate(backbone), backbone.dtype_policy
        return ClassificationHead(outputs, rate, dtype=policy, name="classifier", **own)

    def _rate(self, backbone: Backbone) -> float:
        return backbone.config.dropout if self.dropout is None else self.dropout
