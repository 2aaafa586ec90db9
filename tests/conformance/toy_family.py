"""A family from outside of the package, in one file: a small decoder that follows "Add a family" in CONTRIBUTING."""

from __future__ import annotations

from dataclasses import dataclass

import keras

from lmzoo.families.encoder_config import EncoderConfig
from lmzoo.families.transformer import TransformerBackbone
from lmzoo.registry.family import Family, register_family
from lmzoo.text import WordPieceTokenizer
from lmzoo.text.packing import Packing


@dataclass(frozen=True, kw_only=True)
class ToyConfig(EncoderConfig):
    """Arguments of `ToyBackbone`: `EncoderConfig` without segments."""

    num_segments: int = 0

    has_segments = False


@keras.saving.register_keras_serializable(package="toy")
class ToyBackbone(TransformerBackbone):
    """A decoder with its LayerNorms before the sublayers, like GPT-2."""

    config_class = ToyConfig
    causal = True
    norm = "pre"
    embedding_norm = False
    has_pooler = False


TOY = register_family(
    Family(
        name="toy",
        backbone=ToyBackbone,
        tokenizer=WordPieceTokenizer,
        packing=Packing(start="", end="[SEP]", between=("[SEP]",), segments=False),
        tiny=ToyConfig(
            vocabulary_size=127, num_layers=3, num_heads=5, hidden_dim=55, intermediate_dim=37, max_sequence_length=59
        ),
    )
)
