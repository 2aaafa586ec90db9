"""The recurrent language model family."""

from lmzoo.families.lstm_lm.backbone import LstmLmBackbone, LstmLmConfig
from lmzoo.registry.family import Family, register_family
from lmzoo.text.packing import Packing
from lmzoo.text.tokenizers.bpe import END_OF_TEXT, ONLY_END_OF_TEXT, BytePairTokenizer

FAMILY = Family(
    name="lstm_lm",
    title="LSTM, GRU and RNN language models",
    guide="guides/language_models.md",
    backbone=LstmLmBackbone,
    tokenizer=BytePairTokenizer,
    packing=Packing(start="", end=END_OF_TEXT, between=(END_OF_TEXT,), segments=False),
    pretrained_head="causal_lm",
    special_tokens=ONLY_END_OF_TEXT,
    tiny=LstmLmConfig(vocabulary_size=311, num_layers=3, hidden_dim=37, max_sequence_length=71),
)
register_family(FAMILY)

__all__ = ["FAMILY", "LstmLmBackbone", "LstmLmConfig"]
