"""Hard negatives, compared with Sentence Transformers' miner for the same vectors and scores."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from lmzoo.search import mine_negatives

QUERIES = ["q0", "q1", "q2", "q1", "q3", "q0"]
POSITIVES = ["p0", "p1", "p2", "p3", "p1", "p0"]  # q1 has two relevant texts, p1 has two queries, one pair repeats
PAIRS = [*zip(QUERIES, POSITIVES, strict=True)]
CORPUS = [f"t{i}" for i in range(23)] + ["p2", "t3"]


def vectors(texts):
    """Return vectors of length 1 that depend only on the text."""
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") for text in texts]
    rows = np.stack([np.random.default_rng(seed).normal(size=5) for seed in seeds])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype("float32")


class Embedder:
    similarity = "cosine"

    def embed_queries(self, texts, batch_size=32):
        return vectors(texts)

    embed_documents = embed_queries


class CrossEncoder:
    def score(self, texts, batch_size=32):
        return [float(vectors([f"{query}|{text}"])[0, 0]) for query, text in texts]


OPTIONS = [
    {},
    {"num_negatives": 5},
    {"range_min": 2},
    {"range_min": 1, "range_max": 4, "num_negatives": 2},
    {"absolute_margin": 0.2},
    {"absolute_margin": 0},
    {"relative_margin": 0.3, "num_negatives": 4},
    {"max_score": 0.1},
    {"max_score": -0.3, "range_max": 30},
    {"absolute_margin": 0.1, "relative_margin": 0.5, "range_min": 1, "num_negatives": 2},
    {"max_score": 0.5, "cross_encoder": True},
    {"relative_margin": 0.05, "cross_encoder": True, "num_negatives": 6},
]


@pytest.mark.parametrize("corpus", [None, CORPUS], ids=["positives", "corpus"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_negatives_equal_sentence_transformers(options, corpus, capsys):
    pytest.importorskip("sentence_transformers")
    expected: dict[tuple[str, str], list[tuple[str, float]]] = {pair: [] for pair in PAIRS}
    for row in mine_by_sentence_transformers(corpus, **options):
        expected[row["anchor"], row["positive"]].append((row["negative"], row["scores"][1]))
    assert any(expected.values())
    capsys.readouterr()
    options = {**options, "cross_encoder": CrossEncoder() if options.get("cross_encoder") else None}
    rows = mine_negatives(Embedder(), QUERIES, POSITIVES, corpus, **options)
    assert [(row["query"], row["positive"]) for row in rows] == PAIRS
    for pair, row in zip(PAIRS, rows, strict=True):
        assert row["negatives"] == [text for text, _ in expected[pair]]
        assert row["scores"] == pytest.approx([score for _, score in expected[pair]], abs=1e-5)
        assert row["scores"] == sorted(row["scores"], reverse=True)


def mine_by_sentence_transformers(corpus, cross_encoder=False, **options):
    import torch
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    class Model:
        device = "cpu"

        def encode_query(self, texts, **options):
            return vectors(texts)

        encode_document = encode_query

        def similarity(self, queries, texts):
            return torch.as_tensor(queries) @ torch.as_tensor(texts).T

        def similarity_pairwise(self, queries, texts):
            return (torch.as_tensor(queries) * torch.as_tensor(texts)).sum(dim=1)

    class Scorer:
        def predict(self, pairs, **options):
            return torch.tensor(CrossEncoder().score(pairs))

    return mine_hard_negatives(
        Dataset.from_dict({"anchor": QUERIES, "positive": POSITIVES}),
        Model(),
        corpus=corpus,
        cross_encoder=Scorer() if cross_encoder else None,
        output_scores=True,
        verbose=False,
        **options,
    ).to_list()


def test_scores_of_a_cross_encoder_decide():
    class RelevanceScorer:
        def score(self, texts, batch_size=32):
            return [1.0 if text.startswith("p") or text == "t7" else 0.0 for _, text in texts]

    rows = mine_negatives(
        Embedder(), QUERIES, POSITIVES, CORPUS, num_negatives=23, absolute_margin=0.5, cross_encoder=RelevanceScorer()
    )
    assert all(sorted(row["negatives"]) == sorted({*CORPUS} - {"p2", "t7"}) for row in rows)


def test_bytes_and_arrays_of_texts():
    (row,) = mine_negatives(Embedder(), [b"q0"], np.array(["p0"], object), [b"t1", "t2"], 2)
    assert (row["query"], row["positive"], sorted(row["negatives"])) == ("q0", "p0", ["t1", "t2"])


def test_rows_of_a_query_have_lists_of_their_own():
    first, second = mine_negatives(Embedder(), ["q1", "q1"], ["p1", "p3"], CORPUS, num_negatives=2)
    assert (first["negatives"], first["scores"]) == (second["negatives"], second["scores"])
    first["negatives"].clear()
    first["scores"].clear()
    assert len(second["negatives"]) == len(second["scores"]) == 2


def test_a_query_is_no_negative_of_itself():
    rows = mine_negatives(Embedder(), QUERIES, POSITIVES, [*CORPUS, "q1", "q3"], num_negatives=4)
    assert all(row["query"] not in row["negatives"] and len(row["negatives"]) == 4 for row in rows)
    (row,) = mine_negatives(Embedder(), ["q1"], ["q1"], ["t1"])
    assert row["negatives"] == ["t1"]
    with pytest.raises(ValueError, match="All texts are relevant to the query 'q1', or equal to it"):
        mine_negatives(Embedder(), ["q1"], ["p1"], ["q1"])


VALID = (["a"], ["b"], ["c"])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([], []), {}, ValueError, "Every query needs a relevant text: got 0 and 0"),
        ((["a"], ["b", "c"]), {}, ValueError, "Every query needs a relevant text: got 1 and 2"),
        ((["a"], ["b"]), {}, ValueError, "All texts are relevant to the query 'a', or equal to it. Pass a `corpus`"),
        ((["a", "a"], ["b", "c"], ["c", "b"]), {}, ValueError, "All texts are relevant to the query 'a'"),
        ((["a"], ["b"], ["c", 3]), {}, TypeError, r"`corpus\[1\]`"),
        ((["a"], [("b", "c")], ["d"]), {}, ValueError, "`positives` must be a list of single texts, got pairs"),
        (VALID, {"num_negatives": 0}, ValueError, "`num_negatives` must be a positive integer"),
        (VALID, {"range_min": -1}, ValueError, "`range_min` must be an integer of at least 0"),
        (VALID, {"range_min": 2, "range_max": 4}, ValueError, r"`range_max` must be at least .*, 5, got 4"),
        (VALID, {"absolute_margin": -0.1}, ValueError, "`absolute_margin` must be a number of at least 0"),
        (VALID, {"relative_margin": "5%"}, ValueError, "`relative_margin` must be a number of at least 0"),
        (VALID, {"max_score": "x"}, ValueError, "`max_score` must be a number or None"),
        (VALID, {"cross_encoder": CrossEncoder()}, ValueError, "`max_score`: pass one of these"),
    ],
)
def test_errors_before_the_first_step(arguments, options, error, message):
    with pytest.raises(error, match=message):
        mine_negatives(None, *arguments, **options)
