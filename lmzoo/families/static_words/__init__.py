"""The family of static word vectors."""

from lmzoo.families.static_words.backbone import StaticBackbone, StaticConfig
from lmzoo.registry.family import Family, register_family
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.tokenizer import SpecialTokens
from lmzoo.text.tokenizers.word_level import WordTokenizer

FAMILY = Family(
    name="static_words",
    title="Static word vectors",
    guide="guides/word_vectors.md",
    backbone=StaticBackbone,
    tokenizer=WordTokenizer,
    packing=Packing(start="", end="", between=("<sep>",), segments=False),
    pretrained_head="",
    special_tokens=SpecialTokens(start_token=None, end_token=None, unk_token="<unk>", other_tokens=("<sep>",)),
    tiny=StaticConfig(vocabulary_size=127, hidden_dim=11),
)
register_family(FAMILY)

__all__ = ["FAMILY", "StaticBackbone", "StaticConfig"]
