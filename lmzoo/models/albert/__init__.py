"""The ALBERT family."""

from lmzoo.models.albert.backbone import AlbertBackbone, AlbertConfig
from lmzoo.models.family import Family, register_family
from lmzoo.text.masking import Masking
from lmzoo.text.packing import Packing
from lmzoo.text.sentencepiece import SentencePieceTokenizer

FAMILY = register_family(
    Family(
        name="albert",
        backbone=AlbertBackbone,
        tokenizer=SentencePieceTokenizer,
        packing=Packing(start="[CLS]", end="[SEP]", between=("[SEP]",), segments=True),
        masking=Masking(whole_word=True, ngram=3),
        tiny=AlbertConfig(
            vocabulary_size=139,
            num_layers=4,
            num_heads=5,
            hidden_dim=35,
            intermediate_dim=59,
            embedding_dim=13,
            num_groups=2,
            num_inner_repetitions=2,
            max_sequence_length=73,
        ),
    )
)

__all__ = ["FAMILY", "AlbertBackbone", "AlbertConfig"]
