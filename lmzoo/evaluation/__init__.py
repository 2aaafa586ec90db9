"""Evaluation of predictions: retrieval and SQuAD metrics, calibration, and the reports of `lmzoo evaluate`."""

from lmzoo.evaluation.errors import Calibration, calibration, report
from lmzoo.evaluation.retrieval import retrieval_metrics
from lmzoo.evaluation.squad import squad_metrics

__all__ = ["Calibration", "calibration", "report", "retrieval_metrics", "squad_metrics"]
