"""Evaluation of predictions: SQuAD metrics, calibration, and the reports of `lmzoo evaluate`."""

from lmzoo.evaluation.errors import Calibration, calibration, report
from lmzoo.evaluation.squad import squad_metrics

__all__ = ["Calibration", "calibration", "report", "squad_metrics"]
