"""ModernBERT (Warner et al., 2024, https://arxiv.org/abs/2412.13663)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import keras

from lmzoo.common.arguments import is_number, require
from lmzoo.errors import ArgumentError
from lmzoo.families.encoder_config import EncoderConfig
from lmzoo.families.transformer import TransformerBackbone


@dataclass(frozen=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
    """Configuration of `ModernBertBackbone`: an `EncoderConfig` with local attention and rotary positions.

    Example: see `ModernBertBackbone`.
    """

    dropout: float = 0.0
    max_sequence_length: int = 8192
    num_segments: int = 0
    layer_norm_epsilon: float = 1e-5
    local_attention_window: int = 128
    global_attention_every: int = 3
    rotary_max_wavelength: float = 160_000.0
    local_rotary_max_wavelength: float = 10_000.0

    has_segments = False
    without_axis = ("max_sequence_length",)  # see `lmzoo.checkpoints.engine.check_axes`

    def __post_init__(self) -> None:
        """Check all fields.

        Raises:
            ValueError: If a value is invalid; the message gives the field, its value and the allowed values.
        """
        super().__post_init__()
        window = self.local_attention_window
        require(window >= 2, "local_attention_window", "an integer of at least 2", window)
        for name in ("rotary_max_wavelength", "local_rotary_max_wavelength"):
            value = getattr(self, name)
            require(is_number(value, 1) and value < math.inf, name, "a finite number of at least 1", value)
        if self.hidden_dim // self.num_heads % 2:
            width = self.hidden_dim // self.num_heads
            raise ArgumentError(f"Rotary positions need heads of an even width, got {width}.", "num_heads")

    def is_global(self, index: int) -> bool:
        """Return whether the block at `index`, counted from 0, attends to all positions."""
        return index % self.global_attention_every == 0


@keras.saving.register_keras_serializable(package="lmzoo")
class ModernBertBackbone(TransformerBackbone):
    """ModernBERT encoder: rotary positions, gated feed-forward networks, and mostly local attention.

    LayerNorm precedes every sublayer except the attention of the first block, since the embeddings are already
    normalized. No layer has a bias. By default, every third block attends to all positions. In the other blocks, each
    position attends to a window around it, so the time and memory of these blocks grow linearly with sequence length.

    The inputs are a dict of int32 arrays (B, T) for B texts of T tokens: `token_ids` and `padding_mask` (1 at real
    tokens).

    The outputs are a dict: `sequence_output`, the last hidden states (B, T, H); `pooled_output`, the last hidden state
    of `[CLS]` (B, H); and `hidden_states`, a tuple of num_layers + 1 tensors (B, T, H), from the embeddings to the
    output of the final LayerNorm.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of blocks.
        num_heads: number of attention heads of each block; must divide `hidden_dim` into heads of an even width.
        hidden_dim: width of the hidden states, H.
        intermediate_dim: width of the feed-forward networks' hidden layer after the gate.
        dropout: rate in [0, 1) for embeddings, residual branches and attention probabilities.
        max_sequence_length: longest input in tokens. No weights depend on it.
        num_segments: 0, since ModernBERT has no segments.
        activation: name of the feed-forward activation; see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: number in (0, 1) that is added to the variance in every LayerNorm.
        initializer_range: standard deviation of the truncated normal initializer. It is divided by the square root of
            2·num_layers for kernels that write to the residual stream, two in each block.
        local_attention_window: width of the window of local attention; each position sees half of it on either side.
        global_attention_every: interval n of the blocks that attend to all positions: blocks 0, n, 2·n and so on.
        rotary_max_wavelength: longest wavelength of rotary positions, in units of 2π, in blocks that attend to all
            positions.
        local_rotary_max_wavelength: longest wavelength of rotary positions, in units of 2π, in the other blocks.
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

    backbone = lmzoo.models.ModernBertBackbone(
        vocabulary_size=101, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=24
    )
    ids = np.array([[2, 17, 23, 3, 0]], "int32")
    backbone({"token_ids": ids, "padding_mask": ids > 0})["pooled_output"].shape  # (1, 12)
    ```
    """

    config_class = ModernBertConfig
    norm = "pre"
    has_pooler = False
    use_bias = False
    position_table = False
    scales_outputs = True

    @classmethod
    def block_options(cls, config: Any, index: int) -> dict[str, Any]:
        """Return the attention window, rotary wavelength and LayerNorm setting of the block at `index`."""
        is_global = config.is_global(index)
        return {
            "gated": True,
            "attention_norm": index > 0,
            "window": None if is_global else config.local_attention_window,
            "rotary_wavelength": config.rotary_max_wavelength if is_global else config.local_rotary_max_wavelength,
        }
