"""Metrics of rankings, compared with `ir_measures` if it is installed, and with values by hand."""

from __future__ import annotations

import random

import pytest

from lmzoo.evaluation import retrieval_metrics

# Rank 1 is relevant, rank 3 is more relevant, and the relevant "d" is not in the ranking.
RANKING = ["a", "b", "c"]
GRADES = {"a": 1, "c": 3, "d": 2, "b": 0}


def test_metrics_by_hand():
    log3 = 1.584962500721156
    scores = retrieval_metrics([RANKING], [GRADES], k=[1, 3])
    assert scores["ndcg@1"] == pytest.approx(1 / 3)
    assert scores["ndcg@3"] == pytest.approx((1 + 3 / 2) / (3 + 2 / log3 + 1 / 2))
    assert scores["map@1"] == pytest.approx(1 / 3)
    assert scores["map@3"] == pytest.approx((1 + 2 / 3) / 3)
    assert (scores["recall@1"], scores["recall@3"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert scores["mrr@3"] == 1
    # The scores are means over queries. An empty ranking and a ranking without a relevant text score 0.
    scores = retrieval_metrics([["b", "a"], [], ["x"]], [{"a"}, ["a"], {"a": 2}], k=2)
    assert scores["mrr@2"] == pytest.approx(1 / 6)
    assert scores["recall@2"] == pytest.approx(1 / 3)


def test_hits_of_search_are_rankings():
    hits = [{"index": 4, "text": "x", "score": 0.9}, {"index": 2, "score": 0.1}]
    assert retrieval_metrics([hits], [{2}], 2) == retrieval_metrics([[4, 2]], [[2]], 2)


def test_metrics_equal_ir_measures():
    ir_measures = pytest.importorskip("ir_measures")
    from ir_measures import AP, RR, R, nDCG

    rng = random.Random(7)
    run: dict[str, dict[str, float]] = {}
    grades: dict[str, dict[str, int]] = {}
    for query in map(str, range(29)):
        texts = [f"t{i}" for i in range(41)]
        run[query] = {text: rng.random() for text in rng.sample(texts, rng.randrange(1, 37))}
        grades[query] = {text: rng.randrange(4) for text in rng.sample(texts, rng.randrange(3, 31))}
        grades[query]["t0"] = 2
    rankings = [sorted(scores, key=scores.__getitem__, reverse=True) for scores in run.values()]
    cutoffs = [1, 3, 10, 50]
    actual = retrieval_metrics(rankings, [*grades.values()], cutoffs)
    names = {"ndcg": nDCG, "mrr": RR, "map": AP, "recall": R}
    measures = {f"{name}@{k}": measure @ k for name, measure in names.items() for k in cutoffs}
    expected = ir_measures.calc_aggregate(measures.values(), grades, run)
    assert actual.keys() == measures.keys()
    for name, measure in measures.items():
        assert actual[name] == pytest.approx(expected[measure], abs=1e-12), name


@pytest.mark.parametrize(
    ("rankings", "relevant", "k", "message"),
    [
        ([], [], 10, "Every query needs a ranking and relevant texts: got 0 and 0"),
        ([[1]], [{1}, {2}], 10, "got 1 and 2"),
        ([[1], [2]], [{1}, []], 10, r"`relevant\[1\]` names no relevant text. Leave out"),
        ([[1], [2]], [{1}, {2: 0}], 10, r"`relevant\[1\]` names no relevant text"),
        ([[1, 2, 1]], [{1}], 10, r"`rankings\[0\]` holds 1 twice"),
        ([[1]], [{1: -1}], 10, r"`relevant\[0\]` must have finite grades of at least 0, got -1 for 1"),
        ([[1]], [{1: float("inf")}], 10, r"`relevant\[0\]` must have finite grades of at least 0, got inf for 1"),
        ([[1], "ab"], [{1}, {2}], 10, r"`rankings\[1\]` must be a list of keys, best first, got 'ab'"),
        ([[1], 5], [{1}, {2}], 10, r"`rankings\[1\]` must be a list of keys, best first, got 5"),
        ([[1], [2]], [{1}, "ab"], 10, r"`relevant\[1\]` must be a set or list of keys, or a dict of grades, got 'ab'"),
        ([[1]], [1], 10, r"`relevant\[0\]` must be a set or list of keys, or a dict of grades, got 1"),
        ("a", ["b"], 10, r"`rankings\[0\]` must be a list of keys"),
        ([[1]], [{1}], 0, "`k` must be a positive integer, or a list of positive integers, got 0"),
        ([[1]], [{1}], [], "`k` must be"),
        ([[1]], [{1}], "10", "`k` must be"),
    ],
)
def test_errors_of_rankings(rankings, relevant, k, message):
    with pytest.raises(ValueError, match=message):
        retrieval_metrics(rankings, relevant, k)
