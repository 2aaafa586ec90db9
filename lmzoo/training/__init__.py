"""Optimizers, learning-rate schedules, losses, metrics, distillation and resumable training."""

from lmzoo.training.contrastive import MultipleNegativesRanking, PairAccuracy, PairCorrelation, PairCosineError
from lmzoo.training.crf_loss import CrfLoss
from lmzoo.training.distillation import DistillationLoss, distill, smaller
from lmzoo.training.embedding_losses import AngleLoss, CosentLoss, MatryoshkaLoss, TripletAccuracy, TripletLoss
from lmzoo.training.fine_tuning import FineTuningRecipe
from lmzoo.training.layer_order import layers_of
from lmzoo.training.lm_losses import Perplexity, UnrolledLoss
from lmzoo.training.metrics import MicroF1, PearsonCorrelation
from lmzoo.training.optimizers import LAMB, Adagrad, AdamW
from lmzoo.training.resuming import ResumableCheckpoint
from lmzoo.training.schedules import InverseSquareRoot, LateDecay, WarmUp
from lmzoo.training.together import fit_together
from lmzoo.training.unfreezing import GradualUnfreezing

__all__ = [
    "LAMB",
    "Adagrad",
    "AdamW",
    "AngleLoss",
    "CosentLoss",
    "CrfLoss",
    "DistillationLoss",
    "FineTuningRecipe",
    "GradualUnfreezing",
    "InverseSquareRoot",
    "LateDecay",
    "MatryoshkaLoss",
    "MicroF1",
    "MultipleNegativesRanking",
    "PairAccuracy",
    "PairCorrelation",
    "PairCosineError",
    "PearsonCorrelation",
    "Perplexity",
    "ResumableCheckpoint",
    "TripletAccuracy",
    "TripletLoss",
    "UnrolledLoss",
    "WarmUp",
    "distill",
    "fit_together",
    "layers_of",
    "smaller",
]
