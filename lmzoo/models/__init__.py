"""Backbones and tasks: the public facade."""

from lmzoo.models.backbone import Backbone
from lmzoo.models.bert import BertBackbone
from lmzoo.tasks import MaskedLM, Task, TextClassifier

__all__ = ["Backbone", "BertBackbone", "MaskedLM", "Task", "TextClassifier"]
