"""Marian's Transformer from sequence to sequence (Vaswani et al., 2017; Junczys-Dowmunt et al., 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from lmzoo.common.arguments import require, require_share
from lmzoo.common.tensor_types import Features, Tensor
from lmzoo.families.backbone import Backbone
from lmzoo.families.embeddings import PLAIN, build_embeddings
from lmzoo.families.encoder_config import EncoderConfig, require_multiple, require_positive
from lmzoo.layers import GatherPositions, TransformerBlock
from lmzoo.layers.attention import Cache
from lmzoo.training import FineTuningRecipe


class Source(NamedTuple):
    """What a decoder needs to know of its source: each block's keys and values, and the mask, bool (B, T)."""

    held: list[Cache]
    mask: Tensor


@dataclass(frozen=True, kw_only=True)
class MarianConfig(EncoderConfig):
    """The arguments of `MarianBackbone`; those of the decoder are by default as in the encoder.

    Example: see `MarianBackbone`.
    """

    has_segments = False
    numbered: ClassVar[Mapping[str, str]] = {"i": "num_layers", "j": "decoder_layers"}

    decoder_layers: Any = None  # ints; None stands for the encoder's
    decoder_heads: Any = None
    decoder_intermediate_dim: Any = None
    num_segments: int = 0
    activation: str = "swish"
    attention_dropout: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: Any = None  # a float; None stands for hidden_dim ** -0.5
    scale_embeddings: bool = True

    def __post_init__(self) -> None:
        """Set what is missing, and check every field.

        Raises:
            ValueError: naming the field, its value and what is allowed.
        """
        require_positive(self, "hidden_dim")
        usual = {
            "decoder_layers": self.num_layers,
            "decoder_heads": self.num_heads,
            "decoder_intermediate_dim": self.intermediate_dim,
            "initializer_range": self.hidden_dim**-0.5,
        }
        for name, value in usual.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        super().__post_init__()
        require_positive(self, "decoder_layers", "decoder_heads", "decoder_intermediate_dim")
        require_multiple(self, "hidden_dim", "decoder_heads")
        require_share("attention_dropout", self.attention_dropout)
        require(isinstance(self.scale_embeddings, bool), "scale_embeddings", "True or False", self.scale_embeddings)


@keras.saving.register_keras_serializable(package="lmzoo")
class MarianBackbone(Backbone):
    """An encoder of the source and a decoder of the target, which share one table of embeddings.

    https://arxiv.org/abs/1706.03762, https://aclanthology.org/P18-4020

    Inputs, a dict of int32: `token_ids` and `padding_mask` (B, T), the source (1 at real tokens, which are on the
    left); `decoder_token_ids` and `decoder_padding_mask` (B, S), the target so far, which begins with padding's token.

    Outputs, a dict: `sequence_output` (B, S, H), the decoder's vectors, `pooled_output` (B, H), that of the last real
    token, and `hidden_states`, a tuple of decoder_layers + 1 tensors (B, S, H); `encoder_output` (B, T, H), and
    `encoder_hidden_states`, a tuple of num_layers + 1 tensors (B, T, H).

    Args:
        vocabulary_size: number of token ids, V, of source and target together.
        num_layers: number of the encoder's blocks.
        num_heads: attention heads of a block; divides `hidden_dim`.
        hidden_dim: width of the hidden states, H.
        intermediate_dim: width of the feed-forward networks' hidden layer.
        dropout: rate in [0, 1) for embeddings and residual branches.
        max_sequence_length: the longest source or target in tokens.
        num_segments: 0, since Marian has no segments.
        activation: name of the feed-forward activation, see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: added to the variance in every LayerNorm.
        initializer_range: standard deviation of the truncated normal initializer; by default `hidden_dim ** -0.5`.
        decoder_layers: number of the decoder's blocks; by default as many as the encoder's.
        decoder_heads: attention heads of the decoder's blocks; by default as in the encoder.
        decoder_intermediate_dim: the same for the width of the feed-forward networks.
        attention_dropout: rate in [0, 1) for attention probabilities.
        scale_embeddings: whether word embeddings are multiplied by the square root of H.
        dtype: dtype policy of all layers: a name, a `keras.DTypePolicy`, or None for Keras' global one.
        name: name of the model.
        trainable: whether the weights are trained.
        remat: whether training computes the blocks again in the backward pass, to save memory: see `Backbone`.
        fine_tuning: recommended settings for fine-tuning, by kind of head: see `Backbone`.

    Raises:
        ValueError: for a value out of range, naming the argument; in a call outside of graphs, for ids out of range.

    Example:

    ```python
    import numpy as np
    import lmzoo

    backbone = lmzoo.models.MarianBackbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24
    )
    source, target = np.array([[17, 23, 5, 0]], "int32"), np.array([[0, 41, 7]], "int32")
    inputs = {"token_ids": source, "padding_mask": source > 0}
    inputs |= {"decoder_token_ids": target, "decoder_padding_mask": np.ones_like(target)}
    backbone(inputs)["sequence_output"].shape  # (1, 3, 12)
    ```
    """

    config_class = MarianConfig
    reads_source = True
    # Translation is trained from scratch.
    usual_recipes: ClassVar[Mapping[str, FineTuningRecipe]] = {"seq2seq_lm": FineTuningRecipe(1e-3)}

    @property
    def id_counts(self) -> dict[str, int]:
        """See `Backbone.id_counts`."""
        return {name: 2 if name.endswith("mask") else self.config.vocabulary_size for name in self.input}

    @classmethod
    def assemble(cls, config: MarianConfig, dtype: keras.DTypePolicy) -> tuple[dict[str, Any], Features, Features]:
        """Build the graph."""

        # === Layers ===
        def make_block(name: str, heads: int, width: int, **arguments: Any) -> TransformerBlock:
            arguments |= {"attention_dropout": config.attention_dropout, "dtype": dtype, "name": name}
            return TransformerBlock(heads, config.hidden_dim, width, *config.block_arguments[3:], **arguments)

        scale = config.hidden_dim**0.5 if config.scale_embeddings else 1.0
        decoder = {"mask": "causal", "reads_source": True}
        layers: dict[str, Any] = {
            "embeddings": build_embeddings(config, dtype, sinusoidal=True, scale=scale, **PLAIN),
            "encoder_blocks": [
                make_block(f"encoder_block_{i}", config.num_heads, config.intermediate_dim)
                for i in range(config.num_layers)
            ],
            "decoder_blocks": [
                make_block(f"decoder_block_{i}", config.decoder_heads, config.decoder_intermediate_dim, **decoder)
                for i in range(config.decoder_layers)
            ],
        }

        # === Functional Model ===
        names = ("token_ids", "padding_mask", "decoder_token_ids", "decoder_padding_mask")
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
        mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        encoder_states = [layers["embeddings"](inputs["token_ids"])]  # (B, T, H)
        for block in layers["encoder_blocks"]:
            encoder_states.append(block(encoder_states[-1], mask))
        target_mask = ops.cast(inputs["decoder_padding_mask"], "bool")  # (B, S)
        hidden_states = [layers["embeddings"](inputs["decoder_token_ids"])]  # (B, S, H)
        for block in layers["decoder_blocks"]:
            hidden_states.append(block(hidden_states[-1], target_mask, source=encoder_states[-1], source_mask=mask))
        last = ops.maximum(ops.sum(inputs["decoder_padding_mask"], axis=1, keepdims=True) - 1, 0)  # (B, 1)
        pooled = GatherPositions(dtype=dtype, name="last_token")(hidden_states[-1], last)[:, 0]  # (B, H)
        outputs = {
            "sequence_output": hidden_states[-1],
            "pooled_output": pooled,
            "hidden_states": tuple(hidden_states),
            "encoder_output": encoder_states[-1],
            "encoder_hidden_states": tuple(encoder_states),
        }
        return layers, inputs, outputs

    def source_attention_scores(self, inputs: Features) -> list[Tensor]:
        """Return the probabilities with which each block of the decoder attends to the source, outside of training.

        Args:
            inputs: the backbone's inputs.

        Returns:
            A list with one float tensor (B, heads, S, T) per block of the decoder.

        Raises:
            ValueError: as for a call of the backbone.
        """
        outputs = self(inputs)
        mask = ops.cast(inputs["padding_mask"], "bool")  # (B, T)
        target_mask = ops.cast(inputs["decoder_padding_mask"], "bool")  # (B, S)
        return [
            block.source_attention.scores(outputs["encoder_output"], mask, block.attend_to_itself(hidden, target_mask))
            for block, hidden in zip(self.decoder_blocks, outputs["hidden_states"], strict=False)
        ]

    # === Step by step ===

    def read_source(self, token_ids: Tensor, padding_mask: Tensor) -> Source:
        """Encode sources for `call_with_cache`.

        Args:
            token_ids: int (B, T).
            padding_mask: int (B, T), 1 at real tokens.
        """
        mask = ops.cast(padding_mask, "bool")  # (B, T)
        x = self.embeddings(token_ids)  # (B, T, H)
        for block in self.encoder_blocks:
            x = block(x, mask)
        return Source([block.source_attention.keys_and_values(x) for block in self.decoder_blocks], mask)

    def empty_cache(self, batch: int, length: int) -> list[Cache]:
        """Return a cache for `call_with_cache`: keys and values of each decoder block for `length` positions."""
        return [block.attention.empty_cache(batch, length) for block in self.decoder_blocks]

    def call_with_cache(
        self, token_ids: Tensor, cache: list[Cache], index: int | Tensor, source: Source
    ) -> tuple[Tensor, list[Cache]]:
        """Return the decoder's vectors at new tokens, which see the source and what the cache holds before them.

        Args:
            token_ids: int (B·K, S), the new tokens of K targets for each source, one after another.
            cache: see `empty_cache`; tensors have the batch as their first axis.
            index: int or int tensor (), the position of the first new token.
            source: see `read_source`.

        Returns:
            Float (B·K, S, H), the `sequence_output` at the new tokens, and the cache with them.
        """
        x = self.embeddings(token_ids, index=index)  # (B·K, S, H)
        mask = ops.ones((1, ops.shape(cache[0][0])[2]), "bool")  # (1, S): causality hides what is not there yet
        after = []
        for block, before, held in zip(self.decoder_blocks, cache, source.held, strict=True):
            x, now = block(x, mask, cache=before, index=index, source=held, source_mask=source.mask)
            after.append(now)
        return x, after
