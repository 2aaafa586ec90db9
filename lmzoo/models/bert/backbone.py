"""BERT (Devlin et al., 2019, https://arxiv.org/abs/1810.04805)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from lmzoo.layers import FirstTokenPooler, TransformerBlock, TransformerEmbedding
from lmzoo.models.backbone import Backbone
from lmzoo.models.config import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class BertConfig(EncoderConfig):
    """Configuration of a BERT encoder; the defaults are those of the released models."""


@keras.saving.register_keras_serializable(package="lmzoo")
class BertBackbone(Backbone):
    """BERT's encoder.

    Inputs, a dict of int32 (B, T): `token_ids`, `padding_mask` (1 at real tokens), `segment_ids`.

    Outputs, a dict: `sequence_output` (B, T, H), `pooled_output` (B, H), `hidden_states`, a tuple of num_layers + 1
    tensors (B, T, H), the first of them the embedding output.

    Args:
        vocabulary_size: int, V.
        num_layers: int.
        num_heads: int; divides `hidden_dim`.
        hidden_dim: int, H.
        intermediate_dim: int.
        dropout: float.
        max_sequence_length: int.
        num_segments: int.
        activation: str, `"gelu"` (exact, erf) unless the checkpoint says otherwise.
        layer_norm_epsilon: float.
        initializer_range: float.
        dtype: dtype policy.

    Raises:
        ValueError: for a value out of range, naming the argument.

    Example:

    ```python
    import numpy as np
    import lmzoo

    backbone = lmzoo.models.BertBackbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24
    )
    ids = np.array([[2, 17, 23, 3, 0]], "int32")
    outputs = backbone({"token_ids": ids, "padding_mask": ids > 0, "segment_ids": np.zeros_like(ids)})
    outputs["pooled_output"].shape  # (1, 12)
    ```
    """

    config_class = BertConfig

    @classmethod
    def assemble(
        cls, config: BertConfig, dtype: keras.DTypePolicy
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Builds the graph."""
        # === Layers ===
        embeddings = TransformerEmbedding(
            config.vocabulary_size,
            config.hidden_dim,
            config.max_sequence_length,
            config.num_segments,
            config.dropout,
            config.layer_norm_epsilon,
            config.initializer_range,
            dtype=dtype,
            name="embeddings",
        )
        blocks = [
            TransformerBlock(
                config.num_heads,
                config.hidden_dim,
                config.intermediate_dim,
                config.activation,
                config.dropout,
                config.layer_norm_epsilon,
                config.initializer_range,
                dtype=dtype,
                name=f"block_{i}",
            )
            for i in range(config.num_layers)
        ]
        pooler = FirstTokenPooler(config.hidden_dim, config.initializer_range, dtype=dtype, name="pooler")

        # === Functional Model ===
        inputs = {
            name: keras.Input((None,), dtype="int32", name=name)
            for name in ("token_ids", "padding_mask", "segment_ids")
        }
        mask = keras.ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        hidden_states = [embeddings(inputs["token_ids"], inputs["segment_ids"])]  # (B, T, H)
        for block in blocks:
            hidden_states.append(block(hidden_states[-1], mask))
        # The pooler takes the first position alone. Compiled code leaves out the outputs that a task does not use.
        first = blocks[-1](hidden_states[-2], mask, hidden_states[-2][:, :1])  # (B, 1, H)
        outputs = {
            "sequence_output": hidden_states[-1],
            "pooled_output": pooler(first),
            "hidden_states": tuple(hidden_states),
        }
        return {"embeddings": embeddings, "blocks": blocks, "pooler": pooler}, inputs, outputs
