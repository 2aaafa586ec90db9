"""The XLNet family."""

from lmzoo.families.xlnet.backbone import XlnetBackbone, XlnetConfig
from lmzoo.families.xlnet.checkpoints import GOOGLE, HUGGING_FACE, KERAS_HUB
from lmzoo.parallel.layouts import SPLIT
from lmzoo.registry.family import LAYOUTS, Family, register_family
from lmzoo.text.masking import Masking
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.xlnet_sentencepiece import XlnetTokenizer

FAMILY = Family(
    name="xlnet",
    title="XLNet",
    backbone=XlnetBackbone,
    tokenizer=XlnetTokenizer,
    packing=Packing(start="", end="<sep>", between=("<sep>",), segments=True, last="<cls>"),
    classifier={"activation": "tanh", "input_dropout": False},
    checkpoints={"hf": HUGGING_FACE, "keras_hub": KERAS_HUB, "google": GOOGLE},
    masking=Masking(probability=1 / 6, whole_word=True, ngram=5),
    objective="plm",
    # In XLNet's kernels, the heads have an axis of their own, along which the kernels are split between devices.
    layouts={
        **LAYOUTS,
        ".*(query|key|value)/kernel": (None, SPLIT, None),
        ".*attention/output_dense/kernel": (None, SPLIT, None),
        ".*attention/distance/kernel": (None, SPLIT, None),
        ".*attention/(content|distance|segment)_bias": (SPLIT, None),
        ".*attention/segments": (None, SPLIT, None),
    },
    tiny=XlnetConfig(
        vocabulary_size=331, num_layers=3, num_heads=3, hidden_dim=42, intermediate_dim=47, max_sequence_length=67
    ),
)
register_family(FAMILY)

__all__ = ["FAMILY", "XlnetBackbone", "XlnetConfig"]
