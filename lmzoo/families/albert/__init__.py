"""The ALBERT family."""

from lmzoo.families.albert.backbone import AlbertBackbone, AlbertConfig
from lmzoo.families.albert.checkpoints import GOOGLE, HUGGING_FACE, KERAS_HUB
from lmzoo.registry.family import Family, register_family
from lmzoo.text.masking import Masking
from lmzoo.text.tokenizers.sentencepiece import SentencePieceTokenizer

FAMILY = Family(
    name="albert",
    title="ALBERT",
    backbone=AlbertBackbone,
    tokenizer=SentencePieceTokenizer,
    masking=Masking(whole_word=True, ngram=3),
    objective="sop",
    checkpoints={"hf": HUGGING_FACE, "keras_hub": KERAS_HUB, "google": GOOGLE},
    variants=({"num_groups": 1, "num_inner_repetitions": 1, "activation": "relu"}, {"embedding_dim": 51}),
    tiny=AlbertConfig(
        vocabulary_size=139,
        num_layers=4,
        num_heads=3,
        hidden_dim=51,
        intermediate_dim=59,
        embedding_dim=13,
        num_groups=2,
        num_inner_repetitions=2,
        max_sequence_length=73,
    ),
)
register_family(FAMILY)

__all__ = ["FAMILY", "AlbertBackbone", "AlbertConfig"]
