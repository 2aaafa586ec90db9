"""One class per task, for every family."""

from lmzoo.tasks.masked_lm import MaskedLM
from lmzoo.tasks.task import Task
from lmzoo.tasks.text_classifier import TextClassifier

__all__ = ["MaskedLM", "Task", "TextClassifier"]
