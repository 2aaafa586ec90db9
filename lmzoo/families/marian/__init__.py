"""The Marian family of translation models, and the family of its encoders."""

from typing import Any

from lmzoo.families.marian.backbone import MarianBackbone, MarianConfig, MarianEncoderBackbone, MarianEncoderConfig
from lmzoo.families.marian.checkpoints import HUGGING_FACE
from lmzoo.registry.family import Family, register_family
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.sentencepiece_pair import MarianTokenizer

_PACKING = Packing(start="", end="</s>", between=("</s>",), segments=False)
_SIZES: dict[str, Any] = {
    "vocabulary_size": 131,
    "num_layers": 3,
    "num_heads": 5,
    "hidden_dim": 35,
    "intermediate_dim": 41,
    "max_sequence_length": 73,
}
FAMILY = Family(
    name="marian",
    title="Marian",
    guide="guides/translate.md",
    backbone=MarianBackbone,
    tokenizer=MarianTokenizer,
    packing=_PACKING,
    checkpoints={"hf": HUGGING_FACE},
    pretrained_head="",
    tiny=MarianConfig(**_SIZES, decoder_layers=2, decoder_heads=7, decoder_intermediate_dim=29),
)
ENCODER_FAMILY = Family(
    name="marian_encoder",
    title="Marian encoder",
    guide="guides/word_vectors.md",
    backbone=MarianEncoderBackbone,
    tokenizer=MarianTokenizer,
    packing=_PACKING,
    pretrained_head="",
    like="marian",
    tiny=MarianEncoderConfig(**_SIZES),
)
register_family(FAMILY)
register_family(ENCODER_FAMILY)

__all__ = [
    "ENCODER_FAMILY",
    "FAMILY",
    "MarianBackbone",
    "MarianConfig",
    "MarianEncoderBackbone",
    "MarianEncoderConfig",
]
