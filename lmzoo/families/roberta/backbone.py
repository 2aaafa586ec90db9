"""RoBERTa (Liu et al., 2019, https://arxiv.org/abs/1907.11692)."""

from __future__ import annotations

from dataclasses import dataclass

import keras

from lmzoo.families.encoder_config import EncoderConfig
from lmzoo.families.transformer import TransformerBackbone


@dataclass(frozen=True, kw_only=True)
class RobertaConfig(EncoderConfig):
    """The arguments of `RobertaBackbone`: those of `EncoderConfig`, with the defaults of fairseq's released models."""

    num_segments: int = 0
    layer_norm_epsilon: float = 1e-5

    first_position = 2


@keras.saving.register_keras_serializable(package="lmzoo")
class RobertaBackbone(TransformerBackbone):
    """RoBERTa's encoder: BERT's without segments and pooler, its positions counted over real tokens from 2.

    Inputs, a dict of int32 (B, T): `token_ids`, `padding_mask` (1 at real tokens).

    Outputs, a dict: `sequence_output` (B, T, H), `pooled_output` (B, H), the vector of `<s>`, and `hidden_states`, a
    tuple of num_layers + 1 tensors (B, T, H), the first of them the embedding output.

    Args:
        max_sequence_length: the longest input in tokens; the position table has two rows more.
        num_segments: rows of the segment table: none in fairseq's models, in Hugging Face's conversions one, which is
            zero.
        **others: those of `BertBackbone`; the signature shows the family's defaults.

    Raises:
        ValueError: for a value out of range, naming the argument; in a call outside of graphs, for ids out of range.

    Example:

    ```python
    import numpy as np
    import lmzoo

    backbone = lmzoo.models.RobertaBackbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24
    )
    ids = np.array([[0, 17, 23, 2, 1]], "int32")
    backbone({"token_ids": ids, "padding_mask": ids != 1})["pooled_output"].shape  # (1, 12)
    ```
    """

    config_class = RobertaConfig
    has_pooler = False
