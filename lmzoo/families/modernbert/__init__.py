"""The ModernBERT family."""

from lmzoo.families.modernbert.backbone import ModernBertBackbone, ModernBertConfig
from lmzoo.families.modernbert.checkpoints import HUGGING_FACE, KERAS_HUB
from lmzoo.registry.family import Family, register_family
from lmzoo.text.masking import Masking
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.normalized_bpe import NormalizedBytePairTokenizer

FAMILY = Family(
    name="modernbert",
    title="ModernBERT",
    guide="guides/checkpoints.md",
    backbone=ModernBertBackbone,
    tokenizer=NormalizedBytePairTokenizer,
    packing=Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=False),
    classifier={"activation": "gelu", "input_dropout": False, "use_bias": False},
    head_norm=True,
    token_heads=True,
    # 30% of the tokens (Warner et al., 2024, section 2.2).
    masking=Masking(probability=0.3, rounding="random"),
    checkpoints={"hf": HUGGING_FACE, "keras_hub": KERAS_HUB},
    variants=({"global_attention_every": 2, "local_attention_window": 5, "activation": "gelu_tanh"},),
    tiny=ModernBertConfig(
        vocabulary_size=317,
        num_layers=5,
        num_heads=5,
        hidden_dim=70,
        intermediate_dim=43,
        max_sequence_length=71,
        local_attention_window=7,
    ),
)
register_family(FAMILY)

__all__ = ["FAMILY", "ModernBertBackbone", "ModernBertConfig"]
