"""One folder for each family, and what they share: the base of all backbones and the Transformer."""

from lmzoo.families.albert import AlbertBackbone
from lmzoo.families.backbone import Backbone
from lmzoo.families.bert import BertBackbone
from lmzoo.families.distilbert import DistilBertBackbone
from lmzoo.families.elmo import ElmoBackbone
from lmzoo.families.ffnn_lm import FfnnLmBackbone
from lmzoo.families.gpt import GptBackbone
from lmzoo.families.gpt2 import Gpt2Backbone
from lmzoo.families.lstm_lm import LstmLmBackbone
from lmzoo.families.marian import MarianBackbone
from lmzoo.families.roberta import RobertaBackbone
from lmzoo.families.xlnet import XlnetBackbone

DEFAULT_FAMILY = "bert"  # the family that is pre-trained if none is named

__all__ = [
    "DEFAULT_FAMILY",
    "AlbertBackbone",
    "Backbone",
    "BertBackbone",
    "DistilBertBackbone",
    "ElmoBackbone",
    "FfnnLmBackbone",
    "Gpt2Backbone",
    "GptBackbone",
    "LstmLmBackbone",
    "MarianBackbone",
    "RobertaBackbone",
    "XlnetBackbone",
]
