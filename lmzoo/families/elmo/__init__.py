"""The ELMo family."""

from lmzoo.families.elmo.backbone import ElmoBackbone
from lmzoo.families.elmo.checkpoints import BILM, BILM_OF_TOKENS
from lmzoo.families.elmo.config import ElmoConfig
from lmzoo.registry.family import Family, register_family
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.characters import CharacterTokenizer

FAMILY = Family(
    name="elmo",
    title="ELMo",
    guide="guides/elmo.md",
    backbone=ElmoBackbone,
    tokenizer=CharacterTokenizer,
    packing=Packing(start="", end="", between=("</S>", "<S>"), segments=False),
    checkpoints={"bilm": BILM, "bilm_tokens": BILM_OF_TOKENS},
    pretrained_head="bidirectional_lm",
    tiny=ElmoConfig(lstm_dim=17, projection_dim=13, char_embedding_dim=3, filters=((1, 5), (2, 7), (3, 11))),
)
register_family(FAMILY)

__all__ = ["FAMILY", "ElmoBackbone", "ElmoConfig"]
