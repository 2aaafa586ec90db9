"""Exact search in arrays and memory-mapped files, compared with sorted scores."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops
from scipy.spatial.distance import cdist

from lmzoo.search import nearest as module
from lmzoo.search import search_vectors
from lmzoo.search.nearest import find_nearest
from tests.memory import memory_grows_less_than

WIDTH = 7
NUMBERS = np.random.default_rng(1409)
QUERIES = NUMBERS.normal(size=(5, WIDTH)).astype("float32")
CORPUS = NUMBERS.normal(size=(61, WIDTH)).astype("float32") * NUMBERS.uniform(0.5, 2, size=(61, 1))
CORPUS[17] = CORPUS[53] = CORPUS[2]  # equal scores
CORPUS[31] = 0  # has a cosine of 0 with any vector


def cosines(queries, corpus):
    norms = np.linalg.norm(corpus, axis=1)
    return (queries @ corpus.T) / np.linalg.norm(queries, axis=1)[:, None] / np.where(norms, norms, 1)


EXPECTED = {
    "cosine": cosines,
    "dot": lambda queries, corpus: queries @ corpus.T,
    "euclidean": lambda queries, corpus: -cdist(queries, corpus),
    "manhattan": lambda queries, corpus: -np.abs(queries[:, None] - corpus).sum(axis=-1),
}


@pytest.fixture
def small_blocks(monkeypatch):
    """Compare blocks of 11 vectors with 2 queries at a time."""
    monkeypatch.setattr(module, "_BLOCK_VALUES", 11 * WIDTH)
    monkeypatch.setattr(module, "_QUERY_GROUP", 2)


@pytest.mark.parametrize("top_k", [1, 3, 13, 61])
@pytest.mark.parametrize("similarity", EXPECTED)
@pytest.mark.usefixtures("small_blocks")
def test_nearest_are_the_best_of_all_scores(similarity, top_k):
    all_scores = np.round(EXPECTED[similarity](QUERIES.astype("float64"), CORPUS.astype("float64")), 6)
    expected = np.argsort(-all_scores, axis=1, kind="stable")[:, :top_k]  # equal scores in the order of the corpus
    scores, indices = find_nearest(QUERIES, CORPUS, top_k, similarity)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(all_scores, expected, axis=1), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.usefixtures("small_blocks")
def test_a_memory_mapped_file_equals_an_array(dtype, tmp_path):
    corpus = (CORPUS * 20).astype(dtype)
    np.save(tmp_path / "corpus.npy", corpus)
    scores, indices = find_nearest(QUERIES, np.load(tmp_path / "corpus.npy", mmap_mode="r")[3:], 5, "dot")
    expected = find_nearest(QUERIES, corpus[3:], 5, "dot")
    np.testing.assert_array_equal(indices, expected[1])
    np.testing.assert_array_equal(scores, expected[0])


@pytest.mark.usefixtures("small_blocks")
def test_copy_on_write_changes_are_searched(tmp_path):
    np.save(tmp_path / "corpus.npy", CORPUS)
    corpus = np.load(tmp_path / "corpus.npy", mmap_mode="c")
    corpus[5] = 100 * QUERIES[0]
    assert find_nearest(QUERIES, corpus, 1, "dot")[1][0, 0] == 5
    assert (corpus[5] == 100 * QUERIES[0]).all()


@pytest.mark.parametrize(("count", "megabytes"), [(250_000, 120), pytest.param(1_000_000, 500, marks=pytest.mark.slow)])
def test_vectors_in_a_file_take_little_memory(count, megabytes, tmp_path):
    corpus = np.lib.format.open_memmap(tmp_path / "corpus.npy", "w+", "float32", (count, 384))
    corpus[count // 3] = corpus[-1] = np.arange(384)  # the rest of the file has no blocks on the disk
    corpus.flush()
    queries = NUMBERS.normal(size=(3, 384)).astype("float32")
    queries[1] = np.arange(384)
    corpus = np.load(tmp_path / "corpus.npy", mmap_mode="r")
    find_nearest(queries, corpus[:10], 2)
    with memory_grows_less_than(megabytes * 10**6):
        scores, indices = find_nearest(queries, corpus, 2)
    assert indices[1].tolist() == [count // 3, count - 1]
    np.testing.assert_allclose(scores[1], 1, atol=1e-6)


def test_hits_have_index_text_and_score():
    (hits,) = search_vectors(np.array([[3, 1]]), np.array([[1, 0], [0, 1], [2, 2]]), 2, "dot")
    assert hits == [{"index": 2, "score": 8.0}, {"index": 0, "score": 3.0}]
    (hits,) = search_vectors(np.array([[3, 1]]), np.array([[1, 0], [0, 1]]), 2, "dot", texts=["a", "b"])
    assert [[*hit.items()] for hit in hits] == [
        [("index", 0), ("text", "a"), ("score", 3.0)],
        [("index", 1), ("text", "b"), ("score", 1.0)],
    ]
    assert search_vectors(np.zeros((0, 2)), np.array([[1, 0]]), 1) == []


def test_cosines_of_very_long_and_very_short_vectors():
    expected = find_nearest(QUERIES, CORPUS, 61)
    for scale in (1e25, 1e-20, 1e-30):
        for queries, corpus in ((QUERIES * scale, CORPUS), (QUERIES, CORPUS * scale)):
            scores, _ = find_nearest(queries.astype("float32"), corpus.astype("float32"), 61)
            np.testing.assert_allclose(scores, expected[0], atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_arrays_of_keras_equal_those_of_numpy(dtype):
    corpus = ops.cast(CORPUS * 20, dtype)
    expected = search_vectors(QUERIES, ops.convert_to_numpy(corpus).astype("float32"), 3, "dot")
    for vectors in (corpus, ops.convert_to_numpy(corpus)):
        assert search_vectors(QUERIES, vectors, 3, "dot") == expected


def test_texts_of_a_table_are_taken_by_position():
    pandas = pytest.importorskip("pandas")
    texts = pandas.Series(["a", "b", "c"], index=[2, 0, 1])
    (hits,) = search_vectors(np.array([[1.0, 0, 0]]), np.eye(3), 1, texts=texts)
    assert hits == [{"index": 0, "text": "a", "score": 1.0}]


NAN = np.where(np.arange(61)[:, None] == 41, np.nan, CORPUS)


@pytest.mark.parametrize(
    ("queries", "corpus", "options", "message"),
    [
        (QUERIES, CORPUS[:0], {}, "`corpus` is empty: pass at least one entry"),
        (QUERIES, CORPUS, {"top_k": 62}, "`top_k` must be an integer from 1 to 61, the size of `corpus`, got 62"),
        (QUERIES, CORPUS, {"top_k": 0}, "`top_k` must be an integer from 1 to 61"),
        (QUERIES, CORPUS, {"similarity": "cos"}, '`similarity` must be "cosine" or "dot" or'),
        (QUERIES[:, 1:], CORPUS, {}, r"vectors of width 7, but the queries have the shape \(5, 6\)"),
        (QUERIES[0], CORPUS, {}, r"the queries have the shape \(7,\)"),
        (QUERIES * np.inf, CORPUS, {}, "A vector of the queries holds NaN or infinity"),
        (QUERIES, NAN, {}, "A vector among 33 to 43 of the corpus holds NaN or infinity"),
        (["a"], CORPUS, {}, r"`queries` must be vectors \(q, H\) of numbers, got \['a'\]"),
        ([[1, 2], [3]], CORPUS, {}, r"`queries` must be vectors \(q, H\) of numbers, got \[\[1"),
        (
            QUERIES[:, :0],
            CORPUS[:, :0],
            {},
            "`corpus` must be an array whose vectors have a width of at least 1, got 0",
        ),
        (QUERIES, ["a"], {}, r"`corpus` must be an array \(n, H\) of numbers or a VectorIndex, got \['a'\]"),
        (
            QUERIES,
            [[0.5, 1], [1, 2]],
            {},
            r"`corpus` must be an array if .*, got \[\[0.5, .* Pass `np.array\(corpus\)`",
        ),
        (QUERIES, [*CORPUS], {}, r"`corpus` must be an array if it holds vectors"),
        (QUERIES, CORPUS, {"texts": "a" * 61}, "`texts` must be a list of texts, got 'aaa"),
        (QUERIES, CORPUS, {"texts": {*range(61)}}, "`texts` must be a list of texts, got {0, 1"),
        (QUERIES, CORPUS, {"texts": ["a"]}, "`texts` must hold a text for each of the 61 vectors of the corpus, got 1"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.usefixtures("small_blocks")
def test_errors_of_vectors_and_options(queries, corpus, options, message):
    with pytest.raises(ValueError, match=message):
        search_vectors(queries, corpus, **options)
