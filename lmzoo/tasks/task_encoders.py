"""Layers between a backbone and a head, which compute one vector per token or per text, and their settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
from keras import ops

from lmzoo.common.arguments import is_integer, require, require_share
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.families.backbone import Backbone
from lmzoo.layers import ClassificationHead, MeanPooler, SpanHead
from lmzoo.layers.encoder_registry import Returns, find_encoder, list_encoders
from lmzoo.registry.family import get_family
from lmzoo.tasks.base.examples import Texts
from lmzoo.tasks.base.preprocessor_checks import takes_zero_segments
from lmzoo.tasks.base.task import Task
from lmzoo.tasks.embedding_head import check_pooling, list_modes, pool_sequence
from lmzoo.tasks.word_features import WordFeatures
from lmzoo.text import Preprocessor


def get_head_options(backbone: Backbone, of_tokens: bool = False) -> dict[str, Any]:
    """Return the constructor arguments that the backbone's family sets for `lmzoo.layers.ClassificationHead`.

    Args:
        backbone: the backbone.
        of_tokens: whether the head takes a vector for each token rather than one for each text.
    """
    family = get_family(backbone)
    if of_tokens and not family.token_heads:
        return {}
    norm_settings = {"layer_norm_epsilon": backbone.config.layer_norm_epsilon} if family.head_norm else {}
    return {**family.classifier, **norm_settings}


@dataclass(frozen=True)
class TokenVectors:
    """Settings for token vectors: an optional encoder on top of the backbone, and dropout.

    Attributes:
        dropout: float, dropout rate on the vectors; None for the backbone's.
        encoder: name of a registered encoder whose kind of output is in `encoder_kinds`; None for the backbone alone.
        encoder_dim: int, width of each direction of the encoder.
        word_vectors: static word vectors to concatenate with the backbone's vectors, or None.

    Raises:
        ValueError: If `encoder` is unknown, if `encoder_dim` is not a positive integer, or if `dropout` is outside of
            [0, 1).
    """

    encoder_kinds: ClassVar[tuple[Returns, ...]] = ("tokens",)

    dropout: float | None = None
    encoder: str | None = None
    encoder_dim: int = 256
    word_vectors: WordFeatures | None = None

    def __post_init__(self) -> None:
        """Check the encoder, its width and the dropout rate."""
        names = list_encoders(self.encoder_kinds)
        allowed_values = ", ".join(f'"{name}"' for name in names) + " or None"
        require(self.encoder is None or self.encoder in names, "encoder", allowed_values, self.encoder)
        require(is_integer(self.encoder_dim, 1), "encoder_dim", "a positive integer", self.encoder_dim)
        if self.dropout is not None:
            require_share("dropout", self.dropout)

    @property
    def returns(self) -> Returns | None:
        """The kind of output of the encoder, such as "tokens", or None for the backbone alone."""
        return None if self.encoder is None else find_encoder(self.encoder)[0]

    @property
    def reads_pairs(self) -> bool:
        """Whether the encoder needs to know which of two texts each token belongs to."""
        return self.returns not in (None, "tokens")

    def rate(self, backbone: Backbone) -> float:
        """Return the dropout rate on the vectors, by default the backbone's.

        Raises:
            ValueError: If `backbone` is not a backbone.
        """
        get_family(backbone)
        return backbone.config.dropout if self.dropout is None else self.dropout

    def inputs(self, backbone: Backbone) -> Features:
        """Return the symbolic inputs of the task: the backbone's and, for an encoder of pairs, segment ids."""
        inputs = dict(backbone.input)
        if self.reads_pairs and "segment_ids" not in inputs:
            inputs["segment_ids"] = keras.Input((None,), dtype="int32", name="segment_ids")
        return inputs

    def features(self, backbone: Backbone, inputs: Features, preprocessor: Preprocessor | None) -> Features:
        """Build the backbone's outputs for `inputs`, with the segment ids that the backbone expects."""
        if self.reads_pairs and takes_zero_segments(backbone, preprocessor):
            inputs = {**inputs, "segment_ids": ops.zeros_like(inputs["segment_ids"])}
        return backbone(inputs)

    def sequence(self, backbone: Backbone, inputs: Features, features: Features) -> Tensor:
        """Build the token vectors, or the outputs of the encoder if there is one.

        Args:
            backbone: backbone of the task.
            inputs: symbolic inputs of the task.
            features: symbolic outputs of the backbone for these inputs.

        Returns:
            The encoder's outputs, such as float (B, T, 2 · encoder_dim), or without an encoder the vectors of T tokens,
            float (B, T, H), or (B, T, H + E) with word vectors of width E.
        """
        sequence = features["sequence_output"]  # (B, T, H)
        if self.encoder is None and self.word_vectors is None:
            return sequence
        ids = next(inputs[name] for name in ("character_ids", "token_ids") if name in inputs)
        if self.word_vectors is not None:
            sequence = self.word_vectors.join(sequence, ids, backbone.dtype_policy)  # (B, T, H + E)
        if self.encoder is None:
            return sequence
        _, encoder_class = find_encoder(self.encoder)
        dropout_rate = self.rate(backbone)
        layer = encoder_class(self.encoder_dim, dropout=dropout_rate, dtype=backbone.dtype_policy, name="encoder")
        segment_ids = [inputs["segment_ids"]] if self.reads_pairs else []
        return layer(sequence, ids, backbone.padding_mask(inputs), *segment_ids)


@dataclass(frozen=True, kw_only=True)
class AnswerLogits(TokenVectors):
    """Settings for the start and end logits of answers; unlike in `TokenVectors`, the encoder may return logits."""

    encoder_kinds: ClassVar[tuple[Returns, ...]] = ("tokens", "answers")

    def logits(self, backbone: Backbone, inputs: Features, features: Features) -> tuple[Tensor, SpanHead | None]:
        """Build the logits of answers, float32 (B, T, 2), and their head, or None if the encoder returns logits."""
        sequence = self.sequence(backbone, inputs, features)
        if self.returns == "answers":
            return sequence, None
        options = get_head_options(backbone, of_tokens=True)
        settings = {name: options[name] for name in ("activation", "use_bias", "layer_norm_epsilon") if name in options}
        head = SpanHead(dtype=backbone.dtype_policy, name="span_head", **settings)
        return head(sequence, backbone.padding_mask(inputs)), head


@dataclass(frozen=True, kw_only=True)
class TextVector(TokenVectors):
    """Settings for text vectors: pooling, and the settings of `TokenVectors`.

    Attributes:
        pooling: `"first"`, the backbone's `pooled_output`; `"mean"`, the mean over the tokens without padding; or a
            list of poolings of `lmzoo.models.TextEmbedder`, to concatenate their vectors. With an encoder that returns
            a vector for each token, `"first"` also means the mean of these. An encoder of pairs returns one vector for
            each pair, which is not pooled.

    Raises:
        ValueError: If `pooling` is unknown, or if it is "first" with `word_vectors` but without an encoder; see also
            `TokenVectors`.
    """

    encoder_kinds: ClassVar[tuple[Returns, ...]] = ("tokens", "pairs")

    pooling: str | Sequence[str] = "first"

    def __post_init__(self) -> None:
        """Check the pooling and the settings for token vectors."""
        super().__post_init__()
        is_name = isinstance(self.pooling, str)
        require(not is_name or self.pooling in ("first", "mean"), "pooling", '"first", "mean" or a list', self.pooling)
        if not is_name:
            object.__setattr__(self, "pooling", list_modes(self.pooling))
        advice = 'The first token has no word vector: pass `pooling="mean"` or an `encoder`.'
        can_join = self.word_vectors is None or not self.uses_pooler
        require(can_join, "pooling", '"mean" with `word_vectors`', self.pooling, advice)

    @property
    def uses_pooler(self) -> bool:
        """Whether the vector comes from the backbone's pooler."""
        return self.pooling == "first" and not self.encoder

    def of(self, backbone: Backbone, inputs: Features, features: Features) -> Tensor:
        """Build text vectors, float (B, D), where D is the width of the outputs of `sequence`.

        With a list of poolings, the width is multiplied by their number, except with an encoder of pairs. See
        `sequence` for the arguments.
        """
        if self.uses_pooler:
            return features["pooled_output"]  # (B, H)
        if self.returns == "pairs":
            return self.sequence(backbone, inputs, features)  # (B, D)
        if not isinstance(self.pooling, str):
            modes = check_pooling(backbone, self.pooling)
            sequence = self.sequence(backbone, inputs, features)
            return pool_sequence(sequence, backbone.padding_mask(inputs), modes, backbone.dtype_policy)
        pooler = MeanPooler(dtype=backbone.dtype_policy, name="mean_pooler")
        return pooler(self.sequence(backbone, inputs, features), backbone.padding_mask(inputs))

    def head(self, backbone: Backbone, outputs: int, bias_trainable: bool = True) -> ClassificationHead:
        """Build a head with `outputs` logits: a linear layer for an encoder of pairs, otherwise the family's head."""
        options = {} if self.returns == "pairs" else get_head_options(backbone)
        settings = {**options, "bias_trainable": bias_trainable}
        return ClassificationHead(
            outputs, self.rate(backbone), dtype=backbone.dtype_policy, name="classifier", **settings
        )


class TextVectorTask(Task):
    """Base class of tasks with a head on one vector per text.

    Args:
        backbone: `lmzoo.models.Backbone`, the layers below the head.
        preprocessor: `lmzoo.text.Preprocessor`, or None for token features only.
        inputs: dict of the model's symbolic inputs.
        outputs: symbolic outputs of the model.
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
        super().__init__(backbone, preprocessor, inputs, outputs, labels, name, vector.reads_pairs)
        self.head = head
        self.uses_pooler = vector.uses_pooler
        self.dropout = vector.dropout
        self.pooling = vector.pooling
        self.encoder = vector.encoder
        self.encoder_dim = vector.encoder_dim
        self.word_vectors = vector.word_vectors and vector.word_vectors.sizes()

    def split_texts(self, x: Texts) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """Return the first and second texts of pairs, or single texts and None.

        Raises:
            ValueError: If texts are single, but the encoder reads pairs.
        """
        first_texts, second_texts = super().split_texts(x)
        if self.reads_pairs and second_texts is None and len(first_texts):
            raise ValueError(
                f"A {type(self).__name__} with encoder={self.encoder!r} takes pairs, (firsts, seconds) or "
                '[(first, second), ...]; got single texts. For single texts, load it with encoder="bilstm" or without '
                "`encoder`."
            )
        return first_texts, second_texts
