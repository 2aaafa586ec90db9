"""Evaluation of search results against the relevant texts of each query."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

import numpy as np

from lmzoo.common.arguments import is_integer, is_number, require
from lmzoo.text.validate_text import is_column


def retrieval_metrics(
    rankings: Sequence[Sequence[Any]],
    relevant: Sequence[Collection[Any] | Mapping[Any, float]],
    k: int | Sequence[int] = 10,
) -> dict[str, float]:
    """Compute nDCG, MRR, MAP and recall of rankings, each cut at rank `k` and averaged over queries.

    The definitions are trec_eval's. With gain gᵢ at rank i, the discounted cumulative gain is DCG = Σ gᵢ / log₂(i + 1).
    nDCG is the DCG divided by the DCG of the best possible ranking (Järvelin and Kekäläinen, 2002). The mean reciprocal
    rank (MRR), the mean average precision (MAP) and recall count grades above 0 as relevant. The average precision is
    divided by the number of all relevant texts, including texts that do not fit into `k` ranks.

    Args:
        rankings: for each query the keys of texts, best first: indices, or any other keys, such as the ids of a
            dataset; or the dicts that `search` returns, whose `"index"` is the key.
        relevant: for each query the keys of its relevant texts, in a set or list, or a dict from keys to grades.
        k: int, the rank at which rankings are cut, or a list of such ranks.

    Returns:
        `{"ndcg@10": float, "mrr@10": float, "map@10": float, "recall@10": float}`, for each `k`.

    Raises:
        ValueError: If `k` is not positive, there are no queries, the numbers of rankings and of queries differ, a query
            has no relevant text, a ranking holds a key twice, an entry is not a collection of keys, or a grade is
            negative or not finite; the message names the position of the entry.

    Example:

    ```python
    from lmzoo.evaluation import retrieval_metrics

    rankings = [[3, 0, 7], [5, 2, 1]]
    retrieval_metrics(rankings, [{0}, {5, 9}], k=3)["recall@3"]  # 0.75
    ```
    """
    cutoffs: list[Any] = [k] if is_integer(k) else list(k) if isinstance(k, Sequence) and not isinstance(k, str) else []
    is_valid = bool(cutoffs) and all(is_integer(cutoff, 1) for cutoff in cutoffs)
    require(is_valid, "k", "a positive integer, or a list of positive integers", k)
    if len(rankings) != len(relevant) or not len(rankings):
        raise ValueError(f"Every query needs a ranking and relevant texts: got {len(rankings)} and {len(relevant)}.")
    scores: dict[str, list[float]] = {}
    for query_index, (ranking, relevant_texts) in enumerate(zip(rankings, relevant, strict=True)):
        keys = _get_keys(ranking, query_index)
        grades = _get_grades(relevant_texts, query_index)
        gains = np.array([grades.get(key, 0.0) for key in keys], "float64")  # (r,)
        best_gains = np.sort(np.array([*grades.values()], "float64"))[::-1]
        for cutoff in cutoffs:
            for name, value in _score_ranking(gains[:cutoff], best_gains, cutoff).items():
                scores.setdefault(f"{name}@{cutoff}", []).append(value)
    return {name: float(np.mean(values)) for name, values in scores.items()}


def _score_ranking(gains: np.ndarray, best_gains: np.ndarray, k: int) -> dict[str, float]:
    """Return the metrics of one ranking.

    Args:
        gains: gains of the ranked texts, at most k.
        best_gains: gains of all relevant texts, in descending order.
        k: int, the rank at which the ranking is cut.
    """
    is_relevant = gains > 0
    ranks = np.flatnonzero(is_relevant) + 1
    precisions = np.arange(1, len(ranks) + 1) / ranks
    return {
        "ndcg": _compute_dcg(gains) / _compute_dcg(best_gains[:k]),
        "mrr": 1 / float(ranks[0]) if len(ranks) else 0.0,
        "map": float(precisions.sum()) / len(best_gains),
        "recall": len(ranks) / len(best_gains),
    }


def _compute_dcg(gains: np.ndarray) -> float:
    """Return the discounted cumulative gain of a ranking."""
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())


def _get_keys(ranking: Any, query_index: int) -> list[Any]:
    require(is_column(ranking), f"rankings[{query_index}]", "a list of keys, best first", ranking)
    keys = [entry["index"] if isinstance(entry, Mapping) else entry for entry in ranking]
    if len(set(keys)) < len(keys):
        repeated_key = next(key for position, key in enumerate(keys) if key in keys[:position])
        raise ValueError(f"`rankings[{query_index}]` holds {repeated_key!r:.60} twice.")
    return keys


def _get_grades(relevant_texts: Any, query_index: int) -> dict[Any, float]:
    """Return the grades above 0 of a query's relevant texts, by key.

    Raises:
        ValueError: If `relevant_texts` has the wrong type or an invalid grade, or no grade is above 0.
    """
    is_valid = is_column(relevant_texts) or isinstance(relevant_texts, (Mapping, Set))
    require(is_valid, f"relevant[{query_index}]", "a set or list of keys, or a dict of grades", relevant_texts)
    grades = dict(relevant_texts) if isinstance(relevant_texts, Mapping) else dict.fromkeys(relevant_texts, 1.0)
    for key, grade in grades.items():
        if not (is_number(grade, 0) and grade < math.inf):
            raise ValueError(
                f"`relevant[{query_index}]` must have finite grades of at least 0, got {grade!r:.60} for {key!r:.60}."
            )
    positive_grades = {key: float(grade) for key, grade in grades.items() if grade > 0}
    if not positive_grades:
        raise ValueError(f"`relevant[{query_index}]` names no relevant text. Leave out queries without relevant texts.")
    return positive_grades
