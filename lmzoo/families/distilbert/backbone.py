"""DistilBERT (Sanh et al., 2019, https://arxiv.org/abs/1910.01108)."""

from __future__ import annotations

from dataclasses import dataclass

import keras

from lmzoo.families.encoder_config import EncoderConfig
from lmzoo.families.transformer import TransformerBackbone


@dataclass(frozen=True, kw_only=True)
class DistilBertConfig(EncoderConfig):
    """The arguments of `DistilBertBackbone`: those of `EncoderConfig`, with the defaults of the released models."""

    num_segments: int = 0

    has_segments = False


@keras.saving.register_keras_serializable(package="lmzoo")
class DistilBertBackbone(TransformerBackbone):
    """DistilBERT's encoder: BERT's without segments and pooler.

    Inputs, a dict of int32 (B, T): `token_ids`, `padding_mask` (1 at real tokens).

    Outputs, a dict: `sequence_output` (B, T, H), `pooled_output` (B, H), the vector of `[CLS]`, and `hidden_states`, a
    tuple of num_layers + 1 tensors (B, T, H), the first of them the embedding output.

    Args:
        num_segments: 0, since DistilBERT has no segments.
        **others: those of `BertBackbone`; the signature shows the family's defaults.

    Raises:
        ValueError: for a value out of range, naming the argument; in a call outside of graphs, for ids out of range.

    Example:

    ```python
    import numpy as np
    import lmzoo

    backbone = lmzoo.models.DistilBertBackbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24
    )
    ids = np.array([[2, 17, 23, 3, 0]], "int32")
    backbone({"token_ids": ids, "padding_mask": ids > 0})["sequence_output"].shape  # (1, 5, 12)
    ```
    """

    config_class = DistilBertConfig
    has_pooler = False
