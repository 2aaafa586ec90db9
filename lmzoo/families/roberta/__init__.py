"""The RoBERTa family."""

from lmzoo.families.roberta.backbone import RobertaBackbone, RobertaConfig
from lmzoo.families.roberta.checkpoints import FAIRSEQ, HUGGING_FACE, KERAS_HUB
from lmzoo.registry.family import Family, register_family
from lmzoo.text.masking import Masking
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.bpe import BytePairTokenizer

FAMILY = Family(
    name="roberta",
    like="bert",
    title="RoBERTa",
    backbone=RobertaBackbone,
    tokenizer=BytePairTokenizer,
    packing=Packing(start="<s>", end="</s>", between=("</s>", "</s>"), segments=False),
    classifier={"activation": "tanh"},
    masking=Masking(rounding="random"),
    checkpoints={"hf": HUGGING_FACE, "keras_hub": KERAS_HUB, "fairseq": FAIRSEQ},
    variants=({"num_segments": 1},),
    tiny=RobertaConfig(
        vocabulary_size=313, num_layers=3, num_heads=7, hidden_dim=49, intermediate_dim=43, max_sequence_length=71
    ),
)
register_family(FAMILY)

__all__ = ["FAMILY", "RobertaBackbone", "RobertaConfig"]
