"""The feed-forward language model family."""

from lmzoo.families.ffnn_lm.backbone import FfnnLmBackbone, FfnnLmConfig
from lmzoo.registry.family import Family, register_family
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.bpe import END_OF_TEXT, ONLY_END_OF_TEXT, BytePairTokenizer

FAMILY = Family(
    name="ffnn_lm",
    title="Feed-forward language model",
    guide="guides/language_models.md",
    backbone=FfnnLmBackbone,
    tokenizer=BytePairTokenizer,
    packing=Packing(start="", end=END_OF_TEXT, between=(END_OF_TEXT,), segments=False),
    pretrained_head="causal_lm",
    special_tokens=ONLY_END_OF_TEXT,
    tiny=FfnnLmConfig(
        vocabulary_size=307, window=13, hidden_dim=29, intermediate_dim=43, direct=True, max_sequence_length=67
    ),
)
register_family(FAMILY)

__all__ = ["FAMILY", "FfnnLmBackbone", "FfnnLmConfig"]
