"""Indexes of faiss: exact, approximate and partial search, and errors."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from lmzoo.search import FaissIndex, search_vectors
from lmzoo.search.nearest import find_nearest

NUMBERS = np.random.default_rng(1409)
CORPUS = NUMBERS.normal(size=(311, 11)).astype("float32") * NUMBERS.uniform(0.5, 2, size=(311, 1)).astype("float32")
QUERIES = NUMBERS.normal(size=(5, 11)).astype("float32")


def test_missing_faiss_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"pip install 'lmzoo\[search\]'"):
        FaissIndex.build(CORPUS)


class TestWithFaiss:
    @pytest.fixture(autouse=True)
    def faiss(self):
        return pytest.importorskip("faiss")

    @pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
    def test_a_flat_index_equals_exact_search(self, similarity):
        scores, indices = FaissIndex.build(CORPUS, similarity, "Flat").search(QUERIES, 7, similarity)
        expected = find_nearest(QUERIES, CORPUS, 7, similarity)
        np.testing.assert_array_equal(indices, expected[1])
        np.testing.assert_allclose(scores, expected[0], atol=1e-5)

    @pytest.mark.parametrize("kind", ["HNSW32", "IVF4,Flat"])
    def test_approximate_indexes_rank_the_text_itself_first(self, kind, faiss, tmp_path):
        built = FaissIndex.build(CORPUS, kind=kind)
        faiss.write_index(built.index, str(tmp_path / "index.faiss"))
        index = FaissIndex(faiss.read_index(str(tmp_path / "index.faiss")))
        assert index.shape == (311, 11)
        hits = search_vectors(CORPUS[:3], index, 5)
        assert [row[0]["index"] for row in hits] == [0, 1, 2]
        np.testing.assert_allclose([row[0]["score"] for row in hits], 1, atol=1e-5)

    def test_a_partial_search_may_have_fewer_hits(self):
        index = FaissIndex.build(CORPUS, kind="IVF16,Flat")  # one of sixteen lists is searched
        (hits,) = search_vectors(QUERIES[:1], index, 300)
        assert 0 < len(hits) < 300
        assert len({hit["index"] for hit in hits}) == len(hits)

    def test_distances_of_product_quantization_are_numbers(self, faiss):
        """Of vectors that their codes give back almost exactly, faiss computes squared distances below 0."""

        class Index:
            metric_type = faiss.METRIC_L2
            ntotal, d = 2, 11

            def search(self, queries, top_k):
                return np.array([[-1e-6, 4]], "float32"), np.array([[1, 0]])

        scores, _ = FaissIndex(Index(), "euclidean").search(QUERIES[:1], 2, "euclidean")
        assert scores.tolist() == [[0, -2]]

    def test_vectors_must_be_finite(self):
        corpus = np.where(np.arange(311)[:, None] == 41, np.nan, CORPUS)
        with pytest.raises(ValueError, match="A vector among 0 to 310 of the corpus holds NaN or infinity"):
            FaissIndex.build(corpus)

    def test_top_k_may_be_a_numpy_integer(self):
        index = FaissIndex.build(CORPUS, kind="Flat")
        np.testing.assert_array_equal(index.search(QUERIES, np.int64(3))[1], index.search(QUERIES, 3)[1])

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (
                lambda: FaissIndex.build(CORPUS, "manhattan"),
                '`similarity` must be "cosine" or "dot" or "euclidean" for',
            ),
            (
                lambda: FaissIndex.build(CORPUS, kind="HNSV"),
                "`kind` must be an index that faiss can make for vectors of",
            ),
            (
                lambda: FaissIndex.build(CORPUS, kind="IVF400,Flat"),
                "`kind` must be an index that faiss can train on 311 vectors, got 'IVF400,Flat'. Pass more vectors",
            ),
            (lambda: FaissIndex.build(CORPUS[:0]), "`vectors` is empty: pass at least one vector"),
            (lambda: FaissIndex.build(CORPUS.tolist()), r"`vectors` must be an array \(n, H\) of numbers, got \[\["),
            (lambda: FaissIndex.build(CORPUS).search(QUERIES, 2, "dot"), "that of the index, 'cosine', got 'dot'"),
            (
                lambda: FaissIndex(FaissIndex.build(CORPUS).index, "euclidean"),
                "the similarity that the index was built",
            ),
            (lambda: FaissIndex.build(CORPUS).search(QUERIES, 312), "`top_k` must be an integer from 1 to 311"),
        ],
    )
    def test_errors_of_arguments(self, call, message):
        with pytest.raises(ValueError, match=message):
            call()
