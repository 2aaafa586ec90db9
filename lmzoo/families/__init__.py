"""One folder for each family, and what they share: the base of all backbones, the Transformer encoder."""

from lmzoo.families.albert import AlbertBackbone
from lmzoo.families.backbone import Backbone
from lmzoo.families.bert import BertBackbone
from lmzoo.families.distilbert import DistilBertBackbone
from lmzoo.families.elmo import ElmoBackbone
from lmzoo.families.roberta import RobertaBackbone

DEFAULT_FAMILY = "bert"  # what is pre-trained where nothing is said

__all__ = [
    "DEFAULT_FAMILY",
    "AlbertBackbone",
    "Backbone",
    "BertBackbone",
    "DistilBertBackbone",
    "ElmoBackbone",
    "RobertaBackbone",
]
