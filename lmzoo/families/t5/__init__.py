"""The T5 family of text-to-text models, and the family of its encoders."""

from typing import Any

from lmzoo.families.t5.backbone import T5Backbone, T5Config, T5EncoderBackbone, T5EncoderConfig
from lmzoo.families.t5.checkpoints import ENCODER_HUGGING_FACE, HUGGING_FACE, KERAS_HUB
from lmzoo.registry.family import Family, register_family
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.sentinel_sentencepiece import T5Tokenizer

_PACKING = Packing(start="", end="</s>", between=("</s>",), segments=False)
_SIZES: dict[str, Any] = {
    "vocabulary_size": 149,
    "num_layers": 3,
    "num_heads": 5,
    "hidden_dim": 37,
    "intermediate_dim": 43,
    "head_dim": 7,
    "max_sequence_length": 73,
    "num_buckets": 8,
    "max_distance": 11,
}
FAMILY = Family(
    name="t5",
    title="T5",
    guide="guides/text_to_text.md",
    backbone=T5Backbone,
    tokenizer=T5Tokenizer,
    packing=_PACKING,
    checkpoints={"hf": HUGGING_FACE, "keras_hub": KERAS_HUB},
    objective="span_corruption",
    pretrained_head="seq2seq_lm",
    variants=({"gated": True, "activation": "gelu_tanh"},),
    tiny=T5Config(**_SIZES, decoder_layers=2),
)
ENCODER_FAMILY = Family(
    name="t5_encoder",
    title="T5 encoder",
    guide="guides/text_to_text.md",
    backbone=T5EncoderBackbone,
    tokenizer=T5Tokenizer,
    packing=_PACKING,
    checkpoints={"hf": ENCODER_HUGGING_FACE},
    pretrained_head="",
    # One block: after three, logits reach 17, where rounding in float32 exceeds the absolute bound of the checks.
    variants=({"gated": True, "activation": "gelu_tanh", "num_layers": 1},),
    tiny=T5EncoderConfig(**_SIZES),
)
register_family(FAMILY)
register_family(ENCODER_FAMILY)

__all__ = ["ENCODER_FAMILY", "FAMILY", "T5Backbone", "T5Config", "T5EncoderBackbone", "T5EncoderConfig"]
