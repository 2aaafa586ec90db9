"""Losses of language models, averaged over tokens."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np

from lmzoo.common.progress import progress_bar
from lmzoo.evaluation.reports import Report
from lmzoo.tasks.base.examples import BatchOptions
from lmzoo.tasks.base.prediction import suppress_retracing_warnings
from lmzoo.tasks.inputs import read_inputs


def measure_by_token(task: Any, x: Any, batch_size: int, verbose: bool | int | str = "auto") -> dict[str, float]:
    """Return the loss and metrics of a language model on texts, with the loss averaged over all tokens.

    `evaluate` weights the loss of each batch by its number of sequences, so its result depends on the batch size.

    Args:
        task: a task whose batches hold a weight for each token.
        x: texts, in memory or streamed.
        batch_size: int, sequences per batch.
        verbose: whether to show a progress bar.
    """
    batches = task.batches(read_inputs(x), BatchOptions(batch_size, "sorted", verbose=verbose != 0))[0]
    return measure_batches(task, batches, verbose)


def measure_batches(task: Any, batches: Any, verbose: bool | int | str = "auto") -> dict[str, float]:
    """Return the loss and metrics of a language model on batches, with the loss averaged over all tokens.

    If no token counts, the loss is NaN.

    Args:
        task: a task whose batches hold a weight for each token.
        batches: the batches, the first entry of the tuple that `Task.batches` returns.
        verbose: whether to show a progress bar.
    """
    # `test_on_batch` resets all metrics before each batch. Their variables are sums over the tokens of a batch.
    variables: list[keras.Variable] = []
    metric_sums: list[np.ndarray] = []
    loss_sum = weight_sum = 0.0
    bar = progress_bar("Evaluating", batches.num_batches, "batches", show=verbose != 0)
    with suppress_retracing_warnings(), bar as advance:
        for features, targets, weights in batches.batches():
            metrics = task.test_on_batch(features, targets, weights, return_dict=True)
            variables = task.metrics_variables
            batch_sums = [keras.ops.convert_to_numpy(variable) for variable in variables]
            metric_sums = (
                [metric_sum + batch_sum for metric_sum, batch_sum in zip(metric_sums, batch_sums, strict=True)]
                if metric_sums
                else batch_sums
            )
            batch_weight = float(weights.sum())
            loss_sum += float(metrics["loss"]) * batch_weight
            weight_sum += batch_weight
            advance(1)
    for variable, value in zip(variables, metric_sums, strict=True):
        variable.assign(value)
    metrics = {name: float(value) for name, value in task.get_metrics_result().items()}
    return {**metrics, "loss": loss_sum / weight_sum if weight_sum else math.nan}


def make_perplexity_report(loss: float) -> Report:
    """Return a report with the perplexity of a model whose mean cross-entropy per token is `loss`."""
    return Report({"perplexity": math.exp(loss)})
