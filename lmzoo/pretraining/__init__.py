"""Pre-training of all families from text files to a preset; `lmzoo pretrain` on the command line."""

from lmzoo.pretraining.pretrain import pretrain
from lmzoo.pretraining.recipe import Recipe

__all__ = ["Recipe", "pretrain"]
