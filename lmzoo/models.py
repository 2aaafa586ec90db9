"""Backbones, tasks and n-gram models: the public face of the package."""

from lmzoo.families import (
    AlbertBackbone,
    Backbone,
    BertBackbone,
    DistilBertBackbone,
    ElmoBackbone,
    FfnnLmBackbone,
    Gpt2Backbone,
    GptBackbone,
    LstmLmBackbone,
    RobertaBackbone,
)
from lmzoo.ngrams import NgramLM
from lmzoo.tasks import (
    BidirectionalLM,
    CausalLM,
    MaskedLM,
    MultipleChoice,
    Pretrainer,
    QuestionAnswerer,
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
    "DistilBertBackbone",
    "ElmoBackbone",
    "FfnnLmBackbone",
    "Gpt2Backbone",
    "GptBackbone",
    "LstmLmBackbone",
    "MaskedLM",
    "MultipleChoice",
    "NgramLM",
    "Pretrainer",
    "QuestionAnswerer",
    "RobertaBackbone",
    "Task",
    "TextClassifier",
    "TextEmbedder",
    "TextRegressor",
    "TokenClassifier",
]
