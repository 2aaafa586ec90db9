"""The GPT-2 family."""

from lmzoo.families.gpt2.backbone import Gpt2Backbone, Gpt2Config
from lmzoo.families.gpt2.checkpoints import HUGGING_FACE, KERAS_HUB
from lmzoo.registry.family import Family, register_family
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.bpe import END_OF_TEXT, ONLY_END_OF_TEXT, BytePairTokenizer

FAMILY = Family(
    name="gpt2",
    title="GPT-2",
    guide="guides/generate.md",
    backbone=Gpt2Backbone,
    tokenizer=BytePairTokenizer,
    packing=Packing(start="", end=END_OF_TEXT, between=(END_OF_TEXT,), segments=False),
    checkpoints={"hf": HUGGING_FACE, "keras_hub": KERAS_HUB},
    pretrained_head="causal_lm",
    special_tokens=ONLY_END_OF_TEXT,
    tiny=Gpt2Config(
        vocabulary_size=317, num_layers=3, num_heads=5, hidden_dim=65, intermediate_dim=41, max_sequence_length=73
    ),
)
register_family(FAMILY)

__all__ = ["FAMILY", "Gpt2Backbone", "Gpt2Config"]
