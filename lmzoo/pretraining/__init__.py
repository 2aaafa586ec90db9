"""From text files to a preset: BERT's, RoBERTa's, ALBERT's and ELMo's training, as `lmzoo pretrain` runs it."""

from lmzoo.pretraining.pretrain import pretrain
from lmzoo.pretraining.recipe import Recipe

__all__ = ["Recipe", "pretrain"]
