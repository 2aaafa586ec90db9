"""Scores of predictions against labels: SQuAD's metrics, and the reports of `lmzoo evaluate`."""

from lmzoo.evaluation.squad import squad_metrics

__all__ = ["squad_metrics"]
