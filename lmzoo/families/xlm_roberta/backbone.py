"""XLM-RoBERTa (Conneau et al., 2020, https://arxiv.org/abs/1911.02116)."""

from __future__ import annotations

from dataclasses import dataclass

import keras

from lmzoo.families.encoder_config import FairseqEncoderConfig
from lmzoo.families.transformer import TransformerBackbone


@dataclass(frozen=True, kw_only=True)
class XlmRobertaConfig(FairseqEncoderConfig):
    """Configuration of `XlmRobertaBackbone`, with the defaults of fairseq's released models.

    Example: see `XlmRobertaBackbone`.
    """


@keras.saving.register_keras_serializable(package="lmzoo")
class XlmRobertaBackbone(TransformerBackbone):
    """XLM-RoBERTa encoder: the architecture of RoBERTa, pre-trained on text in a hundred languages.

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
        num_segments: number of segments: 0 in fairseq's models; 1, with a row of zeros, in Hugging Face's conversions.
            With more, the inputs also include `segment_ids`, which tasks fill with 0.
        activation: name of the feed-forward activation; see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: number in (0, 1) that is added to the variance in every LayerNorm.
        initializer_range: standard deviation of the truncated normal initializer.
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

    backbone = lmzoo.models.XlmRobertaBackbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24
    )
    ids = np.array([[0, 17, 23, 2, 1]], "int32")
    backbone({"token_ids": ids, "padding_mask": ids != 1})["pooled_output"].shape  # (1, 12)
    ```
    """

    config_class = XlmRobertaConfig
    has_pooler = False
