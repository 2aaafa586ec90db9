"""Optimisation and pre-training."""

from lmzoo.training.corpus import pack_documents, pack_sentences
from lmzoo.training.documents import read_documents, split_documents
from lmzoo.training.likelihood import Perplexity, UnrolledLoss
from lmzoo.training.metrics import MicroF1, PearsonCorrelation, spearman
from lmzoo.training.optimizers import LAMB, Adagrad, AdamW
from lmzoo.training.pairs import MultipleNegativesRanking, PairAccuracy, PairCorrelation, PairCosineError
from lmzoo.training.resuming import ResumableCheckpoint
from lmzoo.training.schedules import InverseSquareRoot, WarmUp
from lmzoo.training.segments import SegmentPairs, segment_pairs
from lmzoo.training.shards import TokenCorpus
from lmzoo.training.streams import DocumentStreams
from lmzoo.training.vocabularies import train_byte_pairs, train_sentencepiece, train_tokenizer, train_wordpiece
from lmzoo.training.words import train_words
from lmzoo.training.writing import write_corpus

__all__ = [
    "LAMB",
    "Adagrad",
    "AdamW",
    "DocumentStreams",
    "InverseSquareRoot",
    "MicroF1",
    "MultipleNegativesRanking",
    "PairAccuracy",
    "PairCorrelation",
    "PairCosineError",
    "PearsonCorrelation",
    "Perplexity",
    "ResumableCheckpoint",
    "SegmentPairs",
    "TokenCorpus",
    "UnrolledLoss",
    "WarmUp",
    "pack_documents",
    "pack_sentences",
    "read_documents",
    "segment_pairs",
    "spearman",
    "split_documents",
    "train_byte_pairs",
    "train_sentencepiece",
    "train_tokenizer",
    "train_wordpiece",
    "train_words",
    "write_corpus",
]
