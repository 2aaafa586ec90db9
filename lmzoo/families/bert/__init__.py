"""The BERT family."""

from lmzoo.families.bert.backbone import BertBackbone, BertConfig
from lmzoo.families.bert.checkpoints import GOOGLE, HUGGING_FACE, KERAS_HUB
from lmzoo.registry.family import Family, register_family
from lmzoo.text.tokenizers.wordpiece import WordPieceTokenizer

FAMILY = Family(
    name="bert",
    title="BERT",
    backbone=BertBackbone,
    tokenizer=WordPieceTokenizer,
    objective="nsp",
    checkpoints={"hf": HUGGING_FACE, "keras_hub": KERAS_HUB, "google": GOOGLE},
    variants=({"activation": "gelu_tanh", "layer_norm_epsilon": 1e-7},),
    tiny=BertConfig(
        vocabulary_size=131,
        num_layers=2,
        num_heads=5,
        hidden_dim=35,
        intermediate_dim=53,
        max_sequence_length=67,
    ),
)
register_family(FAMILY)

__all__ = ["FAMILY", "BertBackbone", "BertConfig"]
