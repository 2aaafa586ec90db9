"""The GPT family: OpenAI's first GPT."""

from lmzoo.families.gpt.backbone import GptBackbone, GptConfig
from lmzoo.families.gpt.checkpoints import HUGGING_FACE
from lmzoo.registry.family import Family, register_family
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.character_pairs import CharacterPairTokenizer

FAMILY = Family(
    name="gpt",
    like="gpt2",
    title="GPT",
    guide="guides/generate.md",
    backbone=GptBackbone,
    tokenizer=CharacterPairTokenizer,
    packing=Packing(start="", end="", between=(), segments=False),
    checkpoints={"hf": HUGGING_FACE},
    pretrained_head="causal_lm",
    tiny=GptConfig(vocabulary_size=127, num_layers=3, num_heads=5, hidden_dim=35, max_sequence_length=73),
)
register_family(FAMILY)

__all__ = ["FAMILY", "GptBackbone", "GptConfig"]
