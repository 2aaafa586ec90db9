"""Optimisation and pre-training."""

from lmzoo.training.corpus import pack_documents, pack_sentences, train_wordpiece
from lmzoo.training.optimizers import AdamW

__all__ = ["AdamW", "pack_documents", "pack_sentences", "train_wordpiece"]
