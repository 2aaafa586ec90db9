"""The Marian family of translation models."""

from lmzoo.families.marian.backbone import MarianBackbone, MarianConfig
from lmzoo.families.marian.checkpoints import HUGGING_FACE
from lmzoo.registry.family import Family, register_family
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.sentencepiece_pair import MarianTokenizer

FAMILY = Family(
    name="marian",
    title="Marian",
    guide="guides/translate.md",
    backbone=MarianBackbone,
    tokenizer=MarianTokenizer,
    packing=Packing(start="", end="</s>", between=("</s>",), segments=False),
    checkpoints={"hf": HUGGING_FACE},
    pretrained_head="",
    tiny=MarianConfig(
        vocabulary_size=131,
        num_layers=3,
        num_heads=5,
        hidden_dim=35,
        intermediate_dim=41,
        decoder_layers=2,
        decoder_heads=7,
        decoder_intermediate_dim=29,
        max_sequence_length=73,
    ),
)
register_family(FAMILY)

__all__ = ["FAMILY", "MarianBackbone", "MarianConfig"]
