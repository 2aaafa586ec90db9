"""Evaluation of predictions and word vectors, calibration, and the reports of `lmzoo evaluate`."""

from lmzoo.evaluation.errors import Calibration, calibration, report
from lmzoo.evaluation.retrieval import retrieval_metrics
from lmzoo.evaluation.squad import squad_metrics
from lmzoo.evaluation.word_vectors import word_analogies, word_similarity

__all__ = [
    "Calibration",
    "calibration",
    "report",
    "retrieval_metrics",
    "squad_metrics",
    "word_analogies",
    "word_similarity",
]
