"""The ELECTRA family."""

from lmzoo.families.electra.backbone import ElectraBackbone, ElectraConfig
from lmzoo.families.electra.checkpoints import GOOGLE, HUGGING_FACE, KERAS_HUB
from lmzoo.registry.family import Family, register_family
from lmzoo.text.masking import Masking
from lmzoo.text.tokenizers.wordpiece import WordPieceTokenizer

FAMILY = Family(
    name="electra",
    like="bert",
    title="ELECTRA",
    backbone=ElectraBackbone,
    tokenizer=WordPieceTokenizer,
    classifier={"activation": "gelu"},
    checkpoints={"hf": HUGGING_FACE, "keras_hub": KERAS_HUB, "google": GOOGLE},
    objective="rtd",
    # Google's code draws no random tokens.
    masking=Masking(masked=0.85, random=0),
    variants=({"embedding_dim": 35, "activation": "relu"},),
    tiny=ElectraConfig(
        vocabulary_size=137,
        num_layers=3,
        num_heads=5,
        hidden_dim=35,
        intermediate_dim=47,
        embedding_dim=19,
        max_sequence_length=71,
    ),
)
register_family(FAMILY)

__all__ = ["FAMILY", "ElectraBackbone", "ElectraConfig"]
