"""The DistilBERT family."""

from lmzoo.families.distilbert.backbone import DistilBertBackbone, DistilBertConfig
from lmzoo.families.distilbert.checkpoints import HUGGING_FACE, KERAS_HUB
from lmzoo.registry.family import Family, register_family
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.wordpiece import WordPieceTokenizer

FAMILY = Family(
    name="distilbert",
    like="bert",
    title="DistilBERT",
    backbone=DistilBertBackbone,
    tokenizer=WordPieceTokenizer,
    packing=Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=False),
    classifier={"activation": "relu", "input_dropout": False},
    checkpoints={"hf": HUGGING_FACE, "keras_hub": KERAS_HUB},
    variants=({"activation": "relu"},),
    tiny=DistilBertConfig(
        vocabulary_size=137, num_layers=2, num_heads=3, hidden_dim=33, intermediate_dim=47, max_sequence_length=61
    ),
)
register_family(FAMILY)

__all__ = ["FAMILY", "DistilBertBackbone", "DistilBertConfig"]
