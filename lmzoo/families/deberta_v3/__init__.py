"""The DeBERTa-v3 family."""

from lmzoo.families.deberta_v3.backbone import DebertaV3Backbone, DebertaV3Config
from lmzoo.families.deberta_v3.checkpoints import HUGGING_FACE, KERAS_HUB
from lmzoo.registry.family import Family, register_family
from lmzoo.text.masking import Masking
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.deberta_sentencepiece import DebertaV3Tokenizer

FAMILY = Family(
    name="deberta_v3",
    title="DeBERTa-v3",
    backbone=DebertaV3Backbone,
    tokenizer=DebertaV3Tokenizer,
    packing=Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=False),
    classifier={"activation": "gelu", "input_dropout": False},
    checkpoints={"hf": HUGGING_FACE, "keras_hub": KERAS_HUB},
    objective="rtd",
    # The published models were trained on masks alone, without random tokens.
    masking=Masking(masked=1.0, random=0),
    variants=({"activation": "relu", "bucket_size": 6, "max_relative_positions": 9},),
    tiny=DebertaV3Config(
        vocabulary_size=347,
        num_layers=2,
        num_heads=5,
        hidden_dim=35,
        intermediate_dim=43,
        max_sequence_length=73,
        bucket_size=7,
    ),
)
register_family(FAMILY)

__all__ = ["FAMILY", "DebertaV3Backbone", "DebertaV3Config"]
