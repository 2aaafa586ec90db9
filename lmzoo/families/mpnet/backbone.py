"""MPNet (Song et al., 2020, https://arxiv.org/abs/2004.09297)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from lmzoo.common.arguments import is_integer, require
from lmzoo.families.encoder_config import FairseqEncoderConfig
from lmzoo.families.transformer import TransformerBackbone
from lmzoo.layers import RelativePositionBias

_MAX_BUCKETS = 510  # with 512, buckets of one distance would cover all distances up to the limit of 128


@dataclass(frozen=True, kw_only=True)
class MpnetConfig(FairseqEncoderConfig):
    """Configuration of `MpnetBackbone`: an `EncoderConfig` with buckets of relative positions.

    Example: see `MpnetBackbone`.
    """

    num_buckets: int = 32

    has_segments = False

    def __post_init__(self) -> None:
        """Check all fields.

        Raises:
            ValueError: If a value is invalid; the message gives the field, its value and the allowed values.
        """
        super().__post_init__()
        is_valid = is_integer(self.num_buckets, 4, _MAX_BUCKETS) and self.num_buckets % 2 == 0
        require(is_valid, "num_buckets", f"an even integer from 4 to {_MAX_BUCKETS}", self.num_buckets)


@keras.saving.register_keras_serializable(package="lmzoo")
class MpnetBackbone(TransformerBackbone):
    """MPNet encoder: RoBERTa with a relative position bias on attention scores, shared by all blocks.

    The inputs are a dict of int32 arrays (B, T) for B texts of T tokens: `token_ids` and `padding_mask` (1 at real
    tokens).

    The outputs are a dict: `sequence_output`, the last hidden states (B, T, H); `pooled_output`, the last hidden state
    of `<s>` (B, H); and `hidden_states`, a tuple of num_layers + 1 tensors (B, T, H), starting with the embeddings.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of blocks.
        num_heads: number of attention heads of each block; must divide `hidden_dim`.
        hidden_dim: width of the hidden states, H.
        intermediate_dim: width of the feed-forward networks' hidden layer.
        dropout: rate in [0, 1) for embeddings, residual branches and attention probabilities.
        max_sequence_length: longest input in tokens; the position table has two more rows.
        num_segments: 0, since MPNet has no segments.
        activation: name of the feed-forward activation; see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: number in (0, 1) that is added to the variance in every LayerNorm.
        initializer_range: standard deviation of the truncated normal initializer, at least 0.
        num_buckets: number of rows of the bias table, even, from 4 to 510; see `lmzoo.layers.RelativePositionBias`.
        dtype: dtype policy of all layers: a name, a `keras.DTypePolicy`, or None for Keras' global policy.
        name: name of the model.
        trainable: whether the weights are trained.
        remat: whether training recomputes the blocks in the backward pass to save memory; see `Backbone`.
        fine_tuning: recommended settings for fine-tuning, by kind of head; see `Backbone`.

    Raises:
        ValueError: If an argument is out of range, or an eager call gets an id out of range. The message names the
            argument or input.

    Example:

    ```python
    import numpy as np
    import lmzoo

    backbone = lmzoo.models.MpnetBackbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24
    )
    ids = np.array([[0, 17, 23, 2, 1]], "int32")
    backbone({"token_ids": ids, "padding_mask": ids != 1})["sequence_output"].shape  # (1, 5, 12)
    ```
    """

    config_class = MpnetConfig
    has_pooler = False

    @classmethod
    def make_layers(cls, config: Any, dtype: keras.DTypePolicy) -> dict[str, Any]:
        layers = super().make_layers(config, dtype)
        layers["position_bias"] = RelativePositionBias(
            config.num_heads,
            config.num_buckets,
            initializer_range=config.initializer_range,
            dtype=dtype,
            name="position_bias",
        )
        return layers
