"""Optimisation and pre-training."""

from lmzoo.training.corpus import pack_documents, pack_sentences, train_wordpiece
from lmzoo.training.likelihood import Perplexity, UnrolledLoss
from lmzoo.training.metrics import MicroF1, PearsonCorrelation, spearman
from lmzoo.training.optimizers import Adagrad, AdamW
from lmzoo.training.pairs import MultipleNegativesRanking, PairAccuracy, PairCorrelation, PairCosineError
from lmzoo.training.segments import SegmentPairs, segment_pairs
from lmzoo.training.streams import DocumentStreams
from lmzoo.training.words import train_words

__all__ = [
    "Adagrad",
    "AdamW",
    "DocumentStreams",
    "MicroF1",
    "MultipleNegativesRanking",
    "PairAccuracy",
    "PairCorrelation",
    "PairCosineError",
    "PearsonCorrelation",
    "Perplexity",
    "SegmentPairs",
    "UnrolledLoss",
    "pack_documents",
    "pack_sentences",
    "segment_pairs",
    "spearman",
    "train_wordpiece",
    "train_words",
]
