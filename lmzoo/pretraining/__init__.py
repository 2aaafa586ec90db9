"""Pre-training from text files to a preset, for every family; `lmzoo pretrain` on the command line."""

from lmzoo.pretraining.pretrain import pretrain
from lmzoo.pretraining.recipe import Recipe

__all__ = ["Recipe", "pretrain"]
