"""Pre-training of models from text files to a preset, also available as the command `lmzoo pretrain`."""

from lmzoo.pretraining.pretrain import pretrain
from lmzoo.pretraining.recipe import Recipe

__all__ = ["Recipe", "pretrain"]
