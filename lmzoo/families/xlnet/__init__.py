"""The XLNet family."""

from lmzoo.families.xlnet.backbone import XlnetBackbone, XlnetConfig
from lmzoo.families.xlnet.checkpoints import HUGGING_FACE
from lmzoo.family import Family, register_family
from lmzoo.text.masking import Masking
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.xlnet_sentencepiece import XlnetTokenizer

FAMILY = register_family(
    Family(
        name="xlnet",
        backbone=XlnetBackbone,
        tokenizer=XlnetTokenizer,
        packing=Packing(start="", end="<sep>", between=("<sep>",), segments=True, last="<cls>"),
        classifier={"activation": "tanh", "input_dropout": False},
        checkpoints={"hf": HUGGING_FACE},
        masking=Masking(probability=1 / 6, whole_word=True, ngram=5),
        objective="plm",
        tiny=XlnetConfig(
            vocabulary_size=331, num_layers=3, num_heads=3, hidden_dim=42, intermediate_dim=47, max_sequence_length=67
        ),
    )
)

__all__ = ["FAMILY", "XlnetBackbone", "XlnetConfig"]
