"""ELECTRA (Clark et al., 2020, https://arxiv.org/abs/2003.10555)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from lmzoo.families.encoder_config import EncoderConfig
from lmzoo.families.transformer import TransformerBackbone
from lmzoo.layers import TransformerEmbedding


@dataclass(frozen=True, kw_only=True)
class ElectraConfig(EncoderConfig):
    """Configuration of `ElectraBackbone`: an `EncoderConfig` with a separate width for the embeddings.

    Example: see `ElectraBackbone`.
    """

    embedding_dim: int = 128


@keras.saving.register_keras_serializable(package="lmzoo")
class ElectraBackbone(TransformerBackbone):
    """ELECTRA encoder: BERT without a pooler, with embeddings that may be narrower than the blocks.

    The inputs are a dict of int32 arrays (B, T) for B texts of T tokens: `token_ids`, `padding_mask` (1 at real tokens)
    and `segment_ids`.

    The outputs are a dict: `sequence_output`, the last hidden states (B, T, H); `pooled_output`, the last hidden state
    of `[CLS]` (B, H); and `hidden_states`, a tuple of num_layers + 1 tensors (B, T, H), starting with the embeddings,
    projected to width H if they are narrower.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of blocks.
        num_heads: number of attention heads of each block; must divide `hidden_dim`.
        hidden_dim: width of the hidden states, H.
        intermediate_dim: width of the feed-forward networks' hidden layer.
        dropout: rate in [0, 1) for embeddings, residual branches and attention probabilities.
        max_sequence_length: longest input in tokens; the position table has as many rows.
        num_segments: number of segments. With 1, all tokens get the same segment embedding; with 0, there are none.
        activation: name of the feed-forward activation; see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: number in (0, 1) that is added to the variance in every LayerNorm.
        initializer_range: standard deviation of the truncated normal initializer, at least 0.
        embedding_dim: width of the embeddings. If it differs from `hidden_dim`, a linear layer projects them to H.
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

    backbone = lmzoo.models.ElectraBackbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24, embedding_dim=8
    )
    ids = np.array([[2, 17, 23, 3, 0]], "int32")
    outputs = backbone({"token_ids": ids, "padding_mask": ids > 0, "segment_ids": np.zeros_like(ids)})
    outputs["pooled_output"].shape  # (1, 12)
    ```
    """

    config_class = ElectraConfig
    has_pooler = False
    generator_embeddings = "shared"

    @classmethod
    def make_layers(cls, config: Any, dtype: keras.DTypePolicy) -> dict[str, Any]:
        layers = super().make_layers(config, dtype)
        if config.embedding_dim != config.hidden_dim:
            layers["embedding_projection"] = cls.make_embedding_projection(config, dtype)
        return layers

    @classmethod
    def make_embeddings(cls, config: Any, dtype: keras.DTypePolicy, width: int | None = None) -> TransformerEmbedding:
        """Return the embedding layer, with `embedding_dim` as the default of `width`."""
        return super().make_embeddings(config, dtype, width or config.embedding_dim)
