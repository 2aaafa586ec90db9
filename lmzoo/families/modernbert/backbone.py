"""ModernBERT (Warner et al., 2024, https://arxiv.org/abs/2412.13663)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from lmzoo.common.arguments import is_number, require
from lmzoo.errors import ArgumentError
from lmzoo.families.encoder_config import EncoderConfig
from lmzoo.families.transformer import TransformerBackbone


@dataclass(frozen=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
    """The arguments of `ModernBertBackbone`: those of `EncoderConfig`, and of local attention and rotary positions.

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
        """Check every field.

        Raises:
            ValueError: naming the field, its value and what is allowed.
        """
        super().__post_init__()
        window = self.local_attention_window
        require(window >= 2, "local_attention_window", "an integer of at least 2", window)
        for name in ("rotary_max_wavelength", "local_rotary_max_wavelength"):
            value = getattr(self, name)
            require(is_number(value, 1), name, "a number of at least 1", value)
        if self.hidden_dim // self.num_heads % 2:
            width = self.hidden_dim // self.num_heads
            raise ArgumentError(f"Rotary positions need heads of an even width, got {width}.", "num_heads")

    def is_global(self, index: int) -> bool:
        """Return whether a block, by its number from 0, attends to all positions."""
        return index % self.global_attention_every == 0


@keras.saving.register_keras_serializable(package="lmzoo")
class ModernBertBackbone(TransformerBackbone):
    """ModernBERT's encoder: rotary positions, gated feed-forward networks, and mostly local attention.

    LayerNorm precedes the sublayers, but for the attention of the first block, since the embeddings are normalized.
    Nothing has a bias. Every third block attends to all positions. The others attend to a window around each one, in
    time and memory that grow with the length of the sequences, not with its square.

    Inputs, a dict of int32 (B, T): `token_ids`, `padding_mask` (1 at real tokens).

    Outputs, a dict: `sequence_output` (B, T, H), `pooled_output` (B, H), the vector of `[CLS]`, and `hidden_states`, a
    tuple of num_layers + 1 tensors (B, T, H), the first of them the embedding output, the last one the result of the
    final LayerNorm.

    Args:
        vocabulary_size: number of token ids, V.
        num_layers: number of blocks, L.
        num_heads: attention heads of a block, whose width must be even; divides `hidden_dim`.
        hidden_dim: width of the hidden states, H.
        intermediate_dim: width of the feed-forward networks' hidden layer, I, after the gate.
        dropout: rate in [0, 1) for embeddings, residual branches and attention probabilities.
        max_sequence_length: longest input in tokens. No weights depend on it.
        num_segments: 0, since ModernBERT has no segments.
        activation: name of the feed-forward activation, see `lmzoo.layers.get_activation`.
        layer_norm_epsilon: in (0, 1), added to the variance in every LayerNorm.
        initializer_range: standard deviation of the truncated normal initializer; that of the kernels whose outputs
            are added to the residual stream is divided by the square root of their number, 2·L.
        local_attention_window: in local attention, a position sees half of this number of positions on each side.
        global_attention_every: block 0 and every block after so many others attends to all positions.
        rotary_max_wavelength: longest wavelength of rotary positions, in units of 2π, in blocks that attend to all
            positions.
        local_rotary_max_wavelength: the same in the other blocks.
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
        """Return the window, rotary wavelength and LayerNorm of a block's attention, by its number from 0."""
        is_global = config.is_global(index)
        return {
            "gated": True,
            "attention_norm": index > 0,
            "window": None if is_global else config.local_attention_window,
            "rotary_wavelength": config.rotary_max_wavelength if is_global else config.local_rotary_max_wavelength,
        }
