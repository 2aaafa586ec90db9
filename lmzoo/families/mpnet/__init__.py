"""The MPNet family."""

from lmzoo.families.mpnet.backbone import MpnetBackbone, MpnetConfig
from lmzoo.families.mpnet.checkpoints import HUGGING_FACE
from lmzoo.registry.family import Family, register_family
from lmzoo.text.masking import Masking
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.tokenizer import SpecialTokens
from lmzoo.text.tokenizers.wordpiece import WordPieceTokenizer

FAMILY = Family(
    name="mpnet",
    title="MPNet",
    backbone=MpnetBackbone,
    tokenizer=WordPieceTokenizer,
    # In the order of the published vocabulary, since transformers' class pads with id 1, whatever the configuration.
    special_tokens=SpecialTokens(
        start_token="<s>", pad_token="<pad>", end_token="</s>", unk_token="[UNK]", mask_token="<mask>"
    ),
    packing=Packing(start="<s>", end="</s>", between=("</s>", "</s>"), segments=False),
    classifier={"activation": "tanh"},
    masking=Masking(whole_word=True),
    checkpoints={"hf": HUGGING_FACE},
    variants=({"activation": "relu", "layer_norm_epsilon": 1e-7},),
    tiny=MpnetConfig(
        vocabulary_size=151, num_layers=2, num_heads=5, hidden_dim=55, intermediate_dim=59, max_sequence_length=73
    ),
)
register_family(FAMILY)

__all__ = ["FAMILY", "MpnetBackbone", "MpnetConfig"]
