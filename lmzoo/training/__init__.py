"""Optimizers, schedules, losses, metrics, and runs that can be resumed."""

from lmzoo.training.contrastive import MultipleNegativesRanking, PairAccuracy, PairCorrelation, PairCosineError
from lmzoo.training.fine_tuning import FineTuningRecipe
from lmzoo.training.lm_losses import Perplexity, UnrolledLoss
from lmzoo.training.metrics import MicroF1, PearsonCorrelation
from lmzoo.training.optimizers import LAMB, Adagrad, AdamW
from lmzoo.training.resuming import ResumableCheckpoint
from lmzoo.training.schedules import InverseSquareRoot, LateDecay, WarmUp

__all__ = [
    "LAMB",
    "Adagrad",
    "AdamW",
    "FineTuningRecipe",
    "InverseSquareRoot",
    "LateDecay",
    "MicroF1",
    "MultipleNegativesRanking",
    "PairAccuracy",
    "PairCorrelation",
    "PairCosineError",
    "PearsonCorrelation",
    "Perplexity",
    "ResumableCheckpoint",
    "UnrolledLoss",
    "WarmUp",
]
