"""Optimisation and pre-training."""

from lmzoo.training.corpus import pack_documents, pack_sentences, train_wordpiece
from lmzoo.training.metrics import MicroF1, PearsonCorrelation, spearman
from lmzoo.training.optimizers import AdamW
from lmzoo.training.pairs import MultipleNegativesRanking, PairAccuracy, PairCorrelation, PairCosineError

__all__ = [
    "AdamW",
    "MicroF1",
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
