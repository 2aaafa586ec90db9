"""Marian's sequence-to-sequence Transformer (Vaswani et al., 2017; Junczys-Dowmunt et al., 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import keras

from lmzoo.common.arguments import require, require_share
from lmzoo.common.tensor_types import Tensor
from lmzoo.families.embeddings import PLAIN, build_embeddings
from lmzoo.families.encoder_config import EncoderConfig, require_multiple, require_positive
from lmzoo.families.encoder_decoder import EncoderDecoderBackbone
from lmzoo.families.transformer import TransformerBackbone
from lmzoo.layers import MeanPooler, TransformerBlock, TransformerEmbedding
from lmzoo.training import FineTuningRecipe


@dataclass(frozen=True, kw_only=True)
class MarianEncoderConfig(EncoderConfig):
    """Configuration of `MarianEncoderBackbone`: an `EncoderConfig` with Marian's defaults.

    Example: see `MarianEncoderBackbone`.
    """

    has_segments = False

    num_segments: int = 0
    activation: str = "swish"
    attention_dropout: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: Any = None  # a float; None becomes hidden_dim ** -0.5
    scale_embeddings: bool = True

    def __post_init__(self) -> None:
        """Set missing fields to their defaults, and check all fields.

        Raises:
            ValueError: If a value is invalid; the message gives the field, its value and the allowed values.
        """
        require_positive(self, "hidden_dim")
        if self.initializer_range is None:
            object.__setattr__(self, "initializer_range", self.hidden_dim**-0.5)
        super().__post_init__()
        require_share("attention_dropout", self.attention_dropout)
        require(isinstance(self.scale_embeddings, bool), "scale_embeddings", "True or False", self.scale_embeddings)


@dataclass(frozen=True, kw_only=True)
class MarianConfig(MarianEncoderConfig):
    """Configuration of `MarianBackbone`; by default, the decoder has the sizes of the encoder.

    Example: see `MarianBackbone`.
    """

    numbered: ClassVar[Mapping[str, str]] = {"i": "num_layers", "j": "decoder_layers"}

    decoder_layers: Any = None  # these three are ints; None becomes the encoder's value
    decoder_heads: Any = None
    decoder_intermediate_dim: Any = None

    def __post_init__(self) -> None:
        """Set missing fields to their defaults, and check all fields.

        Raises:
            ValueError: If a value is invalid; the message gives the field, its value and the allowed values.
        """
        defaults = {
            "decoder_layers": self.num_layers,
            "decoder_heads": self.num_heads,
            "decoder_intermediate_dim": self.intermediate_dim,
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        super().__post_init__()
        require_positive(self, "decoder_layers", "decoder_heads", "decoder_intermediate_dim")
        require_multiple(self, "hidden_dim", "decoder_heads")


def make_embeddings(config: MarianEncoderConfig, dtype: keras.DTypePolicy) -> TransformerEmbedding:
    """Return the embedding layer, with sinusoidal positions."""
    scale = config.hidden_dim**0.5 if config.scale_embeddings else 1.0
    return build_embeddings(config, dtype, sinusoidal=True, scale=scale, **PLAIN)


@keras.saving.register_keras_serializable(package="lmzoo")
class MarianEncoderBackbone(TransformerBackbone):
    """Encoder of a Marian translation model, used to compute features for other tasks, as in CoVe.

    CoVe (McCann et al., 2017, https://arxiv.org/abs/1708.00107) uses the encoder of an LSTM translation model.
    `MarianBackbone.make_encoder` returns the encoder of a trained model.

    The inputs are a dict of int32 arrays (B, T) for B texts of T tokens: `token_ids` and `padding_mask` (1 at real
    tokens).

    The outputs are a dict: `sequence_output`, the last hidden states (B, T, H); `pooled_output`, the mean of the
    `sequence_output` over real tokens (B, H); and `hidden_states`, a tuple of num_layers + 1 tensors (B, T, H), from
    the embeddings to the output of the last block.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of blocks.
        num_heads: number of attention heads of each block; must divide `hidden_dim`.
        hidden_dim: width of the hidden states, H.
        intermediate_dim: width of the feed-forward networks' hidden layer.
        dropout: rate in [0, 1) for embeddings and residual branches.
        max_sequence_length: longest input in tokens.
        num_segments: 0, since Marian has no segments.
        activation: name of the feed-forward activation; see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: number in (0, 1) that is added to the variance in every LayerNorm.
        initializer_range: standard deviation of the truncated normal initializer; by default `hidden_dim ** -0.5`.
        attention_dropout: rate in [0, 1) for attention probabilities.
        scale_embeddings: whether token embeddings are multiplied by the square root of H.
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

    backbone = lmzoo.models.MarianEncoderBackbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24
    )
    ids = np.array([[17, 23, 2, 0]], "int32")
    backbone({"token_ids": ids, "padding_mask": ids > 0})["sequence_output"].shape  # (1, 4, 12)
    ```
    """

    config_class = MarianEncoderConfig
    has_pooler = False

    @classmethod
    def make_embeddings(cls, config: Any, dtype: keras.DTypePolicy, width: int | None = None) -> TransformerEmbedding:
        return make_embeddings(config, dtype)

    @classmethod
    def block_options(cls, config: Any, index: int) -> dict[str, Any]:
        return {"attention_dropout": config.attention_dropout}

    @classmethod
    def compute_pooled(cls, layers: dict[str, Any], states: list[Tensor], mask: Tensor) -> Tensor:
        return MeanPooler(dtype=layers["embeddings"].dtype_policy, name="mean_pooler")(states[-1], mask)


@keras.saving.register_keras_serializable(package="lmzoo")
class MarianBackbone(EncoderDecoderBackbone):
    """Encoder-decoder Transformer, with one table of token embeddings for source and target.

    https://arxiv.org/abs/1706.03762, https://aclanthology.org/P18-4020

    The inputs are a dict of int32 arrays: `token_ids` and `padding_mask` (B, T) hold the source, `decoder_token_ids`
    and `decoder_padding_mask` (B, S) the target so far, which starts with the padding token. The masks are 1 at real
    tokens, which are on the left.

    The outputs are a dict. The decoder computes `sequence_output`, its last hidden states (B, S, H); `pooled_output`,
    the last hidden state of the last real token (B, H); and `hidden_states`, a tuple of decoder_layers + 1 tensors
    (B, S, H). The encoder computes `encoder_output`, its last hidden states (B, T, H), and `encoder_hidden_states`, a
    tuple of num_layers + 1 tensors (B, T, H). Both tuples start with the embeddings.

    Args:
        vocabulary_size: number of token ids in the vocabulary that source and target share.
        num_layers: number of encoder blocks.
        num_heads: number of attention heads of each encoder block; must divide `hidden_dim`.
        hidden_dim: width of the hidden states, H.
        intermediate_dim: width of the hidden layer in the encoder's feed-forward networks.
        dropout: rate in [0, 1) for embeddings and residual branches.
        max_sequence_length: longest source or target in tokens.
        num_segments: 0, since Marian has no segments.
        activation: name of the feed-forward activation; see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: number in (0, 1) that is added to the variance in every LayerNorm.
        initializer_range: standard deviation of the truncated normal initializer; by default `hidden_dim ** -0.5`.
        attention_dropout: rate in [0, 1) for attention probabilities.
        scale_embeddings: whether token embeddings are multiplied by the square root of H.
        decoder_layers: number of decoder blocks; by default `num_layers`.
        decoder_heads: number of attention heads of each decoder block; must divide `hidden_dim`; by default
            `num_heads`.
        decoder_intermediate_dim: width of the hidden layer in the decoder's feed-forward networks; by default
            `intermediate_dim`.
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
    encoder_class = MarianEncoderBackbone
    forces_end = True  # as `forced_eos_token_id` requires in the published models
    # For training from scratch.
    usual_recipes: ClassVar[Mapping[str, FineTuningRecipe]] = {"seq2seq_lm": FineTuningRecipe(1e-3)}

    @classmethod
    def make_layers(cls, config: MarianConfig, dtype: keras.DTypePolicy) -> dict[str, Any]:
        def make_block(name: str, num_heads: int, width: int, **arguments: Any) -> TransformerBlock:
            arguments |= {"attention_dropout": config.attention_dropout, "dtype": dtype, "name": name}
            return TransformerBlock(num_heads, config.hidden_dim, width, *config.block_arguments[3:], **arguments)

        decoder_options = {"mask": "causal", "reads_source": True}
        return {
            "embeddings": make_embeddings(config, dtype),
            "encoder_blocks": [
                make_block(f"encoder_block_{i}", config.num_heads, config.intermediate_dim)
                for i in range(config.num_layers)
            ],
            "decoder_blocks": [
                make_block(
                    f"decoder_block_{i}", config.decoder_heads, config.decoder_intermediate_dim, **decoder_options
                )
                for i in range(config.decoder_layers)
            ],
        }
