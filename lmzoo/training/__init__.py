"""Optimisation and pre-training."""

from lmzoo.training.corpus import pack_documents, pack_sentences, train_wordpiece
from lmzoo.training.metrics import PearsonCorrelation, spearman
from lmzoo.training.optimizers import AdamW
from lmzoo.training.pairs import MultipleNegativesRanking, PairAccuracy, PairCorrelation, PairCosineError

__all__ = [
    "AdamW",
    "MultipleNegativesRanking",
    "PairAccuracy",
    "PairCorrelation",
    "PairCosineError",
    "PearsonCorrelation",
    "pack_documents",
    "pack_sentences",
    "spearman",
    "train_wordpiece",
]
