"""Public names of backbones, tasks, n-gram models and word vectors. `make registry` writes this file."""

from typing import TYPE_CHECKING, NoReturn

from lmzoo.common.other_names import refuse_model_name
from lmzoo.families import (
    AlbertBackbone,
    Backbone,
    BertBackbone,
    DebertaV3Backbone,
    DistilBertBackbone,
    ElectraBackbone,
    ElmoBackbone,
    FfnnLmBackbone,
    Gpt2Backbone,
    GptBackbone,
    LstmLmBackbone,
    MarianBackbone,
    MarianEncoderBackbone,
    ModernBertBackbone,
    MpnetBackbone,
    RobertaBackbone,
    StaticBackbone,
    T5Backbone,
    T5EncoderBackbone,
    XlmRobertaBackbone,
    XlnetBackbone,
)
from lmzoo.ngrams import NgramLM
from lmzoo.static_vectors import StaticEmbedder
from lmzoo.tasks import (
    BidirectionalLM,
    CausalLM,
    MaskedLM,
    MultipleChoice,
    Pretrainer,
    QuestionAnswerer,
    Seq2SeqLM,
    Task,
    TextClassifier,
    TextEmbedder,
    TextRegressor,
    TokenClassifier,
)

__all__ = [
    "AlbertBackbone",
    "Backbone",
    "BertBackbone",
    "BidirectionalLM",
    "CausalLM",
    "DebertaV3Backbone",
    "DistilBertBackbone",
    "ElectraBackbone",
    "ElmoBackbone",
    "FfnnLmBackbone",
    "Gpt2Backbone",
    "GptBackbone",
    "LstmLmBackbone",
    "MarianBackbone",
    "MarianEncoderBackbone",
    "MaskedLM",
    "ModernBertBackbone",
    "MpnetBackbone",
    "MultipleChoice",
    "NgramLM",
    "Pretrainer",
    "QuestionAnswerer",
    "RobertaBackbone",
    "Seq2SeqLM",
    "StaticBackbone",
    "StaticEmbedder",
    "T5Backbone",
    "T5EncoderBackbone",
    "Task",
    "TextClassifier",
    "TextEmbedder",
    "TextRegressor",
    "TokenClassifier",
    "XlmRobertaBackbone",
    "XlnetBackbone",
]

if not TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> NoReturn:
        """Raise an AttributeError with advice on what to use instead."""
        refuse_model_name(name, __all__)
