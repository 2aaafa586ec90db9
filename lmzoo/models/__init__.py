"""Backbones and tasks: the public facade."""

from lmzoo.models.albert import AlbertBackbone
from lmzoo.models.backbone import Backbone
from lmzoo.models.bert import BertBackbone
from lmzoo.models.distilbert import DistilBertBackbone
from lmzoo.models.elmo import ElmoBackbone
from lmzoo.models.roberta import RobertaBackbone
from lmzoo.tasks import (
    BidirectionalLM,
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
    "DistilBertBackbone",
    "ElmoBackbone",
    "MaskedLM",
    "MultipleChoice",
    "Pretrainer",
    "QuestionAnswerer",
    "RobertaBackbone",
    "Task",
    "TextClassifier",
    "TextEmbedder",
    "TextRegressor",
    "TokenClassifier",
]
