"""Scores of predictions: functions of labels and of what was predicted."""

from lmzoo.evaluation.squad import squad_metrics

__all__ = ["squad_metrics"]
