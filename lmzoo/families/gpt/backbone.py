"""OpenAI's first GPT (Radford et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import keras

from lmzoo.families.encoder_config import DecoderConfig
from lmzoo.families.transformer import TransformerBackbone


@dataclass(frozen=True, kw_only=True)
class GptConfig(DecoderConfig):
    """Configuration of `GptBackbone`, with the defaults of `DecoderConfig`.

    Example: see `GptBackbone`.
    """


@keras.saving.register_keras_serializable(package="lmzoo")
class GptBackbone(TransformerBackbone):
    """GPT decoder: each position sees only itself and earlier positions, and LayerNorm follows the sublayers.

    https://cdn.openai.com/research-covers/language-unsupervised/language_understanding_paper.pdf

    The inputs are a dict of int32 arrays (B, T) for B texts of T tokens: `token_ids` and `padding_mask` (1 at real
    tokens, which are on the left).

    The outputs are a dict: `sequence_output`, the last hidden states (B, T, H); `pooled_output`, the last hidden state
    of the last real token (B, H); and `hidden_states`, a tuple of num_layers + 1 tensors (B, T, H), starting with the
    embeddings.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of blocks.
        num_heads: number of attention heads of each block; must divide `hidden_dim`.
        hidden_dim: width of the hidden states, H.
        intermediate_dim: width of the feed-forward networks' hidden layer, 4·H by default.
        dropout: rate in [0, 1) for embeddings, residual branches and attention probabilities.
        max_sequence_length: longest input in tokens; the position table has as many rows.
        num_segments: 0, since GPT has no segments.
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

    backbone = lmzoo.models.GptBackbone(vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12)
    ids = np.array([[17, 23, 5, 0]], "int32")
    backbone({"token_ids": ids, "padding_mask": ids > 0})["pooled_output"].shape  # (1, 12)
    ```
    """

    config_class = GptConfig
    causal = True
    embedding_norm = False
    has_pooler = False
