"""Settings and layers that compute the input vectors of a head, one per token or one per text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmzoo.common.arguments import is_integer, require, require_share
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.families.backbone import Backbone
from lmzoo.layers import BiLSTMEncoder, ClassificationHead, MeanPooler
from lmzoo.registry.family import family_of
from lmzoo.tasks.base.task import Task
from lmzoo.tasks.embedding_head import list_modes, pool_sequence, pooling_modes
from lmzoo.text import Preprocessor


def head_options(backbone: Backbone, of_tokens: bool = False) -> dict[str, Any]:
    """Return the family's arguments for a head on the backbone; see `lmzoo.layers.ClassificationHead`.

    Args:
        backbone: the backbone.
        of_tokens: whether the head takes a vector for each token rather than one for each text.
    """
    family = family_of(backbone)
    if of_tokens and not family.token_heads:
        return {}
    norm_settings = {"layer_norm_epsilon": backbone.config.layer_norm_epsilon} if family.head_norm else {}
    return {**family.classifier, **norm_settings}


@dataclass(frozen=True)
class TokenVectors:
    """Settings for token vectors: an optional encoder on top of the backbone, and dropout.

    Attributes:
        dropout: float, dropout rate on the vectors; None for the backbone's.
        encoder: `"bilstm"` for LSTMs in both directions over the backbone's vectors; None for the backbone alone.
        encoder_dim: int, width of each direction of the encoder.

    Raises:
        ValueError: for an unknown `encoder`, an `encoder_dim` that is not a positive integer, or a `dropout` outside of
            [0, 1).
    """

    dropout: float | None = None
    encoder: str | None = None
    encoder_dim: int = 256

    def __post_init__(self) -> None:
        """Check the encoder, its width and the dropout rate."""
        require(self.encoder in (None, "bilstm"), "encoder", '"bilstm" or None', self.encoder)
        require(is_integer(self.encoder_dim, 1), "encoder_dim", "a positive integer", self.encoder_dim)
        if self.dropout is not None:
            require_share("dropout", self.dropout)

    def rate(self, backbone: Backbone) -> float:
        """Return the dropout rate on the vectors, by default the backbone's.

        Raises:
            ValueError: if `backbone` is not a backbone.
        """
        family_of(backbone)
        return backbone.config.dropout if self.dropout is None else self.dropout

    def sequence(self, backbone: Backbone, inputs: Features, features: Features) -> Tensor:
        """Build token vectors, float (B, T, H), or (B, T, 2 encoder_dim) with an encoder.

        Args:
            backbone: backbone of the task.
            inputs: symbolic inputs of the backbone.
            features: symbolic outputs of the backbone for these inputs.
        """
        sequence = features["sequence_output"]  # (B, T, H)
        if not self.encoder:
            return sequence
        dropout_rate = self.rate(backbone)
        policy = backbone.dtype_policy
        layer = BiLSTMEncoder(self.encoder_dim, dropout=dropout_rate, dtype=policy, name="encoder")
        ids = next(inputs[name] for name in ("character_ids", "token_ids") if name in inputs)
        return layer(sequence, ids, backbone.padding_mask(inputs))  # (B, T, 2 encoder_dim)


@dataclass(frozen=True, kw_only=True)
class TextVector(TokenVectors):
    """Settings for text vectors: pooling, and the settings of `TokenVectors`.

    Attributes:
        pooling: `"first"`, the backbone's `pooled_output`; `"mean"`, the mean over the tokens without padding; or a
            list of poolings, see `lmzoo.models.TextEmbedder`, whose vectors are concatenated. With an encoder,
            `"first"` is also the mean of the encoder's outputs.

    Raises:
        ValueError: for an unknown `pooling` or `encoder`.
    """

    pooling: str | Sequence[str] = "first"

    def __post_init__(self) -> None:
        """Check the pooling and the settings for token vectors."""
        super().__post_init__()
        is_name = isinstance(self.pooling, str)
        require(not is_name or self.pooling in ("first", "mean"), "pooling", '"first", "mean" or a list', self.pooling)
        if not is_name:
            object.__setattr__(self, "pooling", list_modes(self.pooling))

    @property
    def uses_pooler(self) -> bool:
        """Whether the vector comes from the backbone's pooler."""
        return self.pooling == "first" and not self.encoder

    def of(self, backbone: Backbone, inputs: Features, features: Features) -> Tensor:
        """Build text vectors, float (B, H), or (B, 2 encoder_dim) with an encoder; see `sequence`.

        A list of poolings multiplies their width by its length.
        """
        if self.uses_pooler:
            return features["pooled_output"]  # (B, H)
        if not isinstance(self.pooling, str):
            modes = pooling_modes(backbone, self.pooling)
            sequence = self.sequence(backbone, inputs, features)
            return pool_sequence(sequence, backbone.padding_mask(inputs), modes, backbone.dtype_policy)
        pooler = MeanPooler(dtype=backbone.dtype_policy, name="mean_pooler")
        return pooler(self.sequence(backbone, inputs, features), backbone.padding_mask(inputs))

    def head(self, backbone: Backbone, outputs: int, bias_trainable: bool = True) -> ClassificationHead:
        """Build the family's classification head with `outputs` logits."""
        settings = {**head_options(backbone), "bias_trainable": bias_trainable}
        return ClassificationHead(
            outputs, self.rate(backbone), dtype=backbone.dtype_policy, name="classifier", **settings
        )


class TextVectorTask(Task):
    """Base class of tasks with a head on one vector per text.

    Args:
        backbone: `lmzoo.models.Backbone`.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        inputs: dict of symbolic inputs.
        outputs: symbolic outputs.
        labels: names of the classes, or None.
        name: name of the model, or None.
        vector: settings for the text vectors.
        head: layer on top of the vectors.
    """

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: Preprocessor | None,
        inputs: Features,
        outputs: Tensor,
        labels: Sequence[str] | None,
        name: str | None,
        vector: TextVector,
        head: ClassificationHead,
    ) -> None:
        super().__init__(backbone, preprocessor, inputs, outputs, labels, name)
        self.head = head
        self.uses_pooler = vector.uses_pooler
        self.dropout = vector.dropout
        self.pooling = vector.pooling
        self.encoder = vector.encoder
        self.encoder_dim = vector.encoder_dim
