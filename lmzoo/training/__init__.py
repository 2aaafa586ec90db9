"""Optimisation and pre-training."""

from lmzoo.training.corpus import pack_documents, pack_sentences, train_wordpiece
from lmzoo.training.metrics import MicroF1, PearsonCorrelation, spearman
from lmzoo.training.optimizers import LAMB, Adagrad, AdamW
from lmzoo.training.pairs import MultipleNegativesRanking, PairAccuracy, PairCorrelation, PairCosineError
from lmzoo.training.resuming import ResumableCheckpoint
from lmzoo.training.schedules import InverseSquareRoot, WarmUp
from lmzoo.training.segments import SegmentPairs, segment_pairs

__all__ = [
    "LAMB",
    "Adagrad",
    "AdamW",
    "InverseSquareRoot",
    "MicroF1",
    "MultipleNegativesRanking",
    "PairAccuracy",
    "PairCorrelation",
    "PairCosineError",
    "PearsonCorrelation",
    "ResumableCheckpoint",
    "SegmentPairs",
    "WarmUp",
    "pack_documents",
    "pack_sentences",
    "segment_pairs",
    "spearman",
    "train_wordpiece",
]
