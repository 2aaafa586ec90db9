"""The XLM-RoBERTa family."""

from lmzoo.families.xlm_roberta.backbone import XlmRobertaBackbone, XlmRobertaConfig
from lmzoo.families.xlm_roberta.checkpoints import FAIRSEQ, HUGGING_FACE, KERAS_HUB
from lmzoo.registry.family import Family, register_family
from lmzoo.text.masking import Masking
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.xlmr_sentencepiece import XlmRobertaTokenizer

FAMILY = Family(
    name="xlm_roberta",
    like="roberta",
    title="XLM-RoBERTa",
    backbone=XlmRobertaBackbone,
    tokenizer=XlmRobertaTokenizer,
    packing=Packing(start="<s>", end="</s>", between=("</s>", "</s>"), segments=False),
    classifier={"activation": "tanh"},
    masking=Masking(rounding="random"),
    checkpoints={"hf": HUGGING_FACE, "keras_hub": KERAS_HUB, "fairseq": FAIRSEQ},
    tiny=XlmRobertaConfig(
        vocabulary_size=349, num_layers=2, num_heads=3, hidden_dim=39, intermediate_dim=41, max_sequence_length=79
    ),
)
register_family(FAMILY)

__all__ = ["FAMILY", "XlmRobertaBackbone", "XlmRobertaConfig"]
