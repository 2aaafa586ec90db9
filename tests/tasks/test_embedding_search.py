"""`TextEmbedder.search`: texts, vectors and indexes as the corpus, prompts, errors."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from lmzoo.models import TextEmbedder
from lmzoo.registry.family import families
from lmzoo.search import QuantizedIndex, mine_negatives
from lmzoo.tasks import text_embedder as module
from lmzoo.testing import tiny_task

TEXTS = ["good film", "the plot was never dull .", "a fine film !", "bad", "very very bad plot", "is", "fine"]
QUERIES = ["a good film", "dull", "the plot"]
PROMPTS = {"query": "the ", "passage": "bad ", "other": "is "}


@pytest.fixture(scope="module")
def embedder():
    return tiny_task(TextEmbedder, families()["bert"], normalize=False, prompts=PROMPTS, default_prompt="other")


def rank(queries, corpus, top_k):
    cosines = queries @ corpus.T / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(corpus, axis=1)
    order = np.argsort(-np.round(cosines, 5), axis=1, kind="stable")[:, :top_k]
    return order, np.take_along_axis(cosines, order, axis=1)


def test_search_ranks_texts_by_cosine(embedder):
    results = embedder.search(QUERIES, TEXTS, top_k=5, batch_size=2)
    expected = rank(embedder.embed(QUERIES, prompt="the "), embedder.embed(TEXTS, prompt="bad "), 5)
    assert [[hit["index"] for hit in hits] for hits in results] == expected[0].tolist()
    np.testing.assert_allclose([[hit["score"] for hit in hits] for hits in results], expected[1], atol=1e-5)
    assert [*results[0][0]] == ["index", "text", "score"]
    assert all(hit["text"] == TEXTS[hit["index"]] for hits in results for hit in hits)


def test_search_takes_names_of_prompts(embedder):
    results = embedder.search(QUERIES, TEXTS, 7, query_prompt_name="passage", document_prompt_name="query")
    expected = rank(embedder.embed(QUERIES, prompt="bad "), embedder.embed(TEXTS, prompt="the "), 7)
    np.testing.assert_allclose([[hit["score"] for hit in hits] for hits in results], expected[1], atol=1e-5)


def test_prompts_of_pairs_come_first(embedder):
    """The prompts of `pair_prompts`, with which the sides were trained, may have any names."""
    prompts = {"query": "bad ", "a": "the ", "b": "film "}
    task = TextEmbedder(embedder.backbone, embedder.preprocessor, prompts=prompts, pair_prompts=("a", None))
    np.testing.assert_allclose(task.embed_queries(QUERIES), task.embed(QUERIES, prompt="the "), atol=1e-6)
    np.testing.assert_allclose(task.embed_documents(TEXTS), task.embed(TEXTS, prompt=""), atol=1e-6)
    task.pair_prompts = ("a", "b")
    np.testing.assert_allclose(task.embed_documents(TEXTS), task.embed(TEXTS, prompt="film "), atol=1e-6)
    np.testing.assert_allclose(
        task.embed_queries(QUERIES, prompt_name="query"), task.embed(QUERIES, prompt="bad "), atol=1e-6
    )


def test_search_takes_vectors_and_indexes(embedder):
    expected = embedder.search(QUERIES, TEXTS, top_k=3)
    vectors = embedder.embed_documents(TEXTS)
    index = QuantizedIndex.quantize(vectors, "binary", originals=vectors)
    for queries, corpus in ((QUERIES, vectors), (embedder.embed_queries(QUERIES), vectors), (QUERIES, index)):
        results = embedder.search(queries, corpus, top_k=3, texts=TEXTS)
        for hits, expected_hits in zip(results, expected, strict=True):
            scores = [hit["score"] for hit in hits]
            assert scores == pytest.approx([hit["score"] for hit in expected_hits], abs=1e-5)
            assert [{**hit, "score": 0} for hit in hits] == [{**hit, "score": 0} for hit in expected_hits]
    assert [*embedder.search(QUERIES, vectors, top_k=1)[0][0]] == ["index", "score"]
    assert embedder.search([], vectors) == []


def test_search_ranks_by_other_similarities():
    for similarity in ("dot", "manhattan"):
        task = tiny_task(TextEmbedder, families()["bert"], normalize=False, similarity=similarity)
        assert TextEmbedder.from_config(task.get_config()).similarity == similarity
        queries, corpus = task.embed(QUERIES), task.embed(TEXTS)
        expected = queries @ corpus.T if similarity == "dot" else -np.abs(queries[:, None] - corpus).sum(axis=-1)
        results = task.search(QUERIES, TEXTS)  # of a small corpus, all texts
        scores = [[hit["score"] for hit in hits] for hits in results]
        np.testing.assert_allclose(scores, -np.sort(-expected, axis=1), rtol=1e-4)


def test_many_texts_are_embedded_in_parts(embedder, monkeypatch):
    monkeypatch.setattr(module, "_BATCHES_PER_PART", 1)
    vectors = embedder.embed_documents(TEXTS, batch_size=3)
    np.testing.assert_allclose(vectors, embedder.embed(TEXTS, prompt="bad "), rtol=1e-4, atol=1e-5)


def test_batch_size_may_be_none(embedder):
    vectors = embedder.embed_queries(QUERIES, batch_size=None)
    np.testing.assert_allclose(vectors, embedder.embed(QUERIES, None, prompt="the "), rtol=1e-4, atol=1e-5)
    (row,) = mine_negatives(embedder, QUERIES[:1], TEXTS[:1], TEXTS[1:3], 1, batch_size=None)
    assert row["negatives"][0] in TEXTS[1:3]


def test_vectors_are_searched_without_a_preprocessor():
    task = TextEmbedder(tiny_task(TextEmbedder, families()["bert"]).backbone)
    assert [hits[0]["index"] for hits in task.search(np.eye(3, VECTORS.shape[1]), np.eye(3, VECTORS.shape[1]))] == [
        0,
        1,
        2,
    ]
    with pytest.raises(ValueError, match="has no preprocessor"):
        task.search(QUERIES, VECTORS)


def test_vectors_may_be_tensors(embedder):
    vectors = np.random.default_rng(5).normal(size=(11, VECTORS.shape[1])).astype("float32")
    expected = embedder.search(vectors[:3], vectors, top_k=2)
    assert embedder.search(ops.convert_to_tensor(vectors[:3]), ops.convert_to_tensor(vectors), top_k=2) == expected


def test_inputs_of_embed_queries_that_are_not_single_texts(embedder):
    for embed in (embedder.embed_queries, embedder.embed_documents):
        with pytest.raises(ValueError, match="`texts` must be a list of single texts, got pairs"):
            embed([["the", "cat"]])
        with pytest.raises(ValueError, match="cannot be put before encoded texts, which have the default prompt"):
            embed(embedder.encode_inputs(TEXTS))
    vectors = embedder.embed_queries(embedder.encode_inputs(TEXTS), prompt_name="other")
    np.testing.assert_allclose(vectors, embedder.embed(TEXTS), rtol=1e-4, atol=1e-5)


VECTORS = np.ones((2, families()["bert"].tiny.hidden_dim))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((QUERIES, []), {}, "`corpus` is empty"),
        ((QUERIES, VECTORS[:0]), {}, "`corpus` is empty: pass at least one entry"),
        ((QUERIES, TEXTS, 8), {}, "`top_k` must be an integer from 1 to 7, the size of `corpus`, got 8"),
        ((QUERIES, VECTORS, 3), {}, "`top_k` must be an integer from 1 to 2, the size of `corpus`, got 3"),
        ((QUERIES, TEXTS), {"query_prompt_name": "x"}, "There is no prompt 'x'; `prompts` has 'query', 'pas.*'other'"),
        ((QUERIES, TEXTS), {"document_prompt_name": "y"}, "There is no prompt 'y'"),
        ((QUERIES, VECTORS[:, 1:], 2), {}, r"`corpus` has vectors of width \d+, but the queries have width \d+"),
        ((VECTORS[:, 1:], VECTORS, 2), {}, r"has vectors of width \d+, but the queries have the shape \(2, \d+\)"),
        (
            (QUERIES, VECTORS, 2),
            {"texts": ["a"]},
            "`texts` must hold a text for each of the 2 vectors of the corpus, got 1",
        ),
        ((QUERIES, TEXTS, 2), {"texts": TEXTS}, "`texts` must be None if `corpus` is a list of texts"),
        (([("a", "b")], TEXTS, 2), {}, "`queries` must be a list of single texts, got pairs"),
        ((QUERIES, (TEXTS, TEXTS), 2), {}, "`corpus` must be a list of single texts, got pairs"),
        ((QUERIES, VECTORS.tolist(), 2), {}, r"`corpus` must be an array if it holds .* Pass `np.array\(corpus\)`"),
        ((VECTORS.tolist(), VECTORS, 2), {}, r"`queries` must be an array if it holds .* Pass `np.array\(queries\)`"),
        ((QUERIES, TEXTS, 2), {"batch_size": 0}, "`batch_size` must be an integer of at least 1"),
    ],
)
def test_errors_before_the_first_step(embedder, arguments, options, message, monkeypatch):
    monkeypatch.setattr(TextEmbedder, "predict", None)
    with pytest.raises(ValueError, match=message):
        embedder.search(*arguments, **options)


def test_entries_that_are_not_texts_are_refused(embedder):
    for arguments in ((["a", 3], TEXTS), (QUERIES, ["a", None]), ("a", TEXTS), (QUERIES, "a")):
        with pytest.raises(TypeError, match=r"\[1\]|list of texts, got one string"):
            embedder.search(*arguments, top_k=1)
    with pytest.raises(ValueError, match='`similarity` must be "cosine" or "dot" or'):
        tiny_task(TextEmbedder, families()["bert"], similarity="angle")
