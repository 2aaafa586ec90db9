"""Transformer encoders: what the families from BERT on share."""

from __future__ import annotations

from typing import Any, ClassVar

import keras

from lmzoo.families.backbone import Backbone
from lmzoo.families.encoder_config import EncoderConfig
from lmzoo.layers import FirstTokenPooler, GatherPositions, TransformerBlock, TransformerEmbedding


class TransformerBackbone(Backbone):
    """Embeddings, post-LayerNorm blocks and perhaps a pooler (Vaswani et al., 2017; Devlin et al., 2019).

    A family names its `config_class`, and may say that it has no pooler.
    """

    has_pooler: ClassVar[bool] = True

    @property
    def id_counts(self) -> dict[str, int]:
        """See `Backbone.id_counts`."""
        counts = {"token_ids": self.config.vocabulary_size, "padding_mask": 2, "segment_ids": self.config.num_segments}
        return {name: counts[name] for name in self.input}

    @classmethod
    def assemble(cls, config: Any, dtype: keras.DTypePolicy) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Builds the graph."""
        # === Layers ===
        layers: dict[str, Any] = {"embeddings": embedding_of(config, dtype)}
        layers["blocks"] = blocks = [block_of(config, dtype, name=f"block_{i}") for i in range(config.num_layers)]
        if cls.has_pooler:
            layers["pooler"] = FirstTokenPooler(config.hidden_dim, config.initializer_range, dtype=dtype, name="pooler")

        # === Functional Model ===
        inputs = inputs_of(config)
        mask = keras.ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        hidden_states = [layers["embeddings"](**inputs)]  # (B, T, H)
        for block in blocks:
            hidden_states.append(block(hidden_states[-1], mask))
        # The first position alone. Compiled code leaves out the outputs that a task does not use.
        first = blocks[-1](hidden_states[-2], mask, hidden_states[-2][:, :1])  # (B, 1, H)
        outputs = {
            "sequence_output": hidden_states[-1],
            "pooled_output": layers["pooler"](first) if cls.has_pooler else first[:, 0],  # (B, H)
            "hidden_states": tuple(hidden_states),
        }
        return layers, inputs, outputs

    def attention_scores(self, inputs: dict[str, Any]) -> list[Any]:
        """Attention probabilities of every block, outside training.

        Args:
            inputs: the backbone's inputs, a dict of (B, T) tensors.

        Returns:
            A list with one float tensor (B, heads, T, T) per block; each row sums to 1 over the real tokens.

        Raises:
            ValueError: as a call of the backbone.
        """
        hidden_states = self(inputs)["hidden_states"]
        mask = keras.ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        return [block.attention.scores(hidden, mask) for block, hidden in zip(self.blocks, hidden_states, strict=False)]

    def vectors_at(self, inputs: dict[str, Any], positions: Any, outputs: dict[str, Any] | None = None) -> Any:
        """See `Backbone.vectors_at`. Compiled code computes the last block for these positions alone."""
        before = (self(inputs) if outputs is None else outputs)["hidden_states"][-2]  # (B, T, H)
        mask = keras.ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        gather = GatherPositions(dtype=self.dtype_policy, name="gather_positions")
        return self.blocks[-1](before, mask, gather(before, positions))


def inputs_of(config: EncoderConfig) -> dict[str, Any]:
    """The symbolic inputs: `token_ids`, `padding_mask` and, if segments are told apart, `segment_ids`; int32 (B, T)."""
    names = ("token_ids", "padding_mask", "segment_ids")[: 3 if config.num_segments > 1 else 2]
    return {name: keras.Input((None,), dtype="int32", name=name) for name in names}


def embedding_of(config: EncoderConfig, dtype: keras.DTypePolicy, width: int | None = None) -> TransformerEmbedding:
    """The embedding layer, of width H or another."""
    return TransformerEmbedding(
        config.vocabulary_size,
        width or config.hidden_dim,
        config.max_sequence_length,
        config.num_segments,
        config.dropout,
        config.layer_norm_epsilon,
        config.initializer_range,
        first_position=config.first_position,
        dtype=dtype,
        name="embeddings",
    )


def block_of(config: EncoderConfig, dtype: keras.DTypePolicy, name: str) -> TransformerBlock:
    """A block of the encoder."""
    return TransformerBlock(
        config.num_heads,
        config.hidden_dim,
        config.intermediate_dim,
        config.activation,
        config.dropout,
        config.layer_norm_epsilon,
        config.initializer_range,
        dtype=dtype,
        name=name,
    )
