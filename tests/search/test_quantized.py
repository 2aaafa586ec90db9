"""Bytes and bits of vectors: Sentence Transformers' codes, and rescoring in the exact order."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.search import QuantizedIndex, VectorIndex, search_vectors
from lmzoo.search import nearest as module
from lmzoo.search.nearest import find_nearest
from lmzoo.search.quantized import find_nearest_bits

WIDTH = 37  # not a multiple of eight
NUMBERS = np.random.default_rng(1409)
CORPUS = NUMBERS.normal(size=(211, WIDTH)).astype("float32")
CORPUS[:, 5] = 0.25  # a constant feature
QUERIES = CORPUS[[3, 50, 200]] + 0.3 * NUMBERS.normal(size=(3, WIDTH)).astype("float32")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_VALUES", 11 * WIDTH)


@pytest.mark.parametrize(("precision", "name"), [("int8", "int8"), ("binary", "ubinary")])
def test_codes_equal_sentence_transformers(precision, name):
    pytest.importorskip("torch")
    util = pytest.importorskip("sentence_transformers.util")
    index = QuantizedIndex.quantize(CORPUS, precision)
    np.testing.assert_array_equal(index.codes, util.quantize_embeddings(CORPUS, name))
    assert index.codes.nbytes == 211 * (WIDTH if precision == "int8" else 5)
    if precision == "int8":
        ranges = np.stack([-np.ones(WIDTH), np.ones(WIDTH)]).astype("float32")  # clips some values
        codes = QuantizedIndex.quantize(CORPUS, precision, ranges).codes
        np.testing.assert_array_equal(codes, util.quantize_embeddings(CORPUS, name, ranges))


def test_bytes_are_at_most_half_a_step_from_their_numbers():
    index = QuantizedIndex.quantize(CORPUS)
    step = np.ptp(CORPUS, axis=0) / 255
    assert (np.abs(index[:] - CORPUS) <= step / 2 + 1e-6).all()
    np.testing.assert_allclose(index[:][:, 5], 0.25)
    assert index[3:5].shape == (2, WIDTH)
    assert index[np.array([1, 7])].dtype == "float32"


def test_a_bit_is_a_sign():
    index = QuantizedIndex.quantize(CORPUS, "binary")
    np.testing.assert_array_equal(index[:], np.where(CORPUS > 0, 1, -1))


def test_differing_bits():
    codes = np.packbits(CORPUS > 0, axis=1)
    queries = np.packbits(QUERIES > 0, axis=1)
    expected = ((CORPUS > 0) != (QUERIES > 0)[:, None]).sum(axis=2)  # (q, n)
    order = np.argsort(expected, axis=1, kind="stable")[:, :7]
    distances, indices = find_nearest_bits(queries, codes, 7)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(distances, np.take_along_axis(expected, order, axis=1))


def test_bits_are_counted_without_numpy_2(monkeypatch):
    codes = np.packbits(CORPUS > 0, axis=1)
    expected = find_nearest_bits(codes[:2], codes, 9)
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    np.testing.assert_array_equal(find_nearest_bits(codes[:2], codes, 9), expected)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("precision", ["int8", "binary"])
def test_rescoring_gives_the_exact_order(precision, similarity, tmp_path):
    np.save(tmp_path / "corpus.npy", CORPUS)
    originals = np.load(tmp_path / "corpus.npy", mmap_mode="r")
    index = QuantizedIndex.quantize(originals, precision, originals=originals, oversampling=30)
    scores, indices = index.search(QUERIES, 7, similarity)
    expected = find_nearest(QUERIES, CORPUS, 7, similarity)
    np.testing.assert_array_equal(indices, expected[1])
    np.testing.assert_allclose(scores, expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("precision", "fraction"), [("int8", 0.95), ("binary", 0.3)])
def test_without_originals_codes_are_scored(precision, fraction):
    index = QuantizedIndex.quantize(CORPUS, precision, oversampling=8)
    scores, indices = index.search(QUERIES, 7)
    decoded = index[:].astype("float64")
    cosines = QUERIES @ decoded.T / np.linalg.norm(QUERIES, axis=1)[:, None] / np.linalg.norm(decoded, axis=1)
    np.testing.assert_allclose(scores, np.take_along_axis(cosines, indices, axis=1), atol=1e-5)
    assert (np.diff(scores) <= 0).all()
    exact = find_nearest(QUERIES, CORPUS, 7)[1]
    assert indices[:, 0].tolist() == [3, 50, 200]
    assert np.mean([len({*a} & {*b}) for a, b in zip(exact, indices, strict=True)]) / 7 >= fraction


def test_oversampling_is_bounded_by_the_corpus():
    index = QuantizedIndex.quantize(CORPUS, "binary", originals=CORPUS)
    assert len(index) == 211
    np.testing.assert_array_equal(index.search(QUERIES, 211)[1], find_nearest(QUERIES, CORPUS, 211)[1])


def test_a_custom_index_is_searched():
    class ReversedIndex(VectorIndex):
        shape = (3, 2)

        def search(self, queries, top_k=10, similarity="cosine"):
            return np.zeros((len(queries), top_k)), np.array([[2, 1, -1][:top_k]] * len(queries))

    hits = search_vectors(np.ones((1, 2)), ReversedIndex(), 3, texts=["a", "b", "c"])
    assert [[hit["text"] for hit in row] for row in hits] == [["c", "b"]]  # -1 means no vector


def test_ranges_may_be_lists():
    ranges = np.stack([CORPUS.min(axis=0), CORPUS.max(axis=0)])
    index = QuantizedIndex.quantize(CORPUS, ranges=ranges.tolist())
    expected = QuantizedIndex.quantize(CORPUS)
    np.testing.assert_array_equal(index.codes, expected.codes)
    np.testing.assert_array_equal(QuantizedIndex(index.codes, WIDTH, ranges.tolist())[:], expected[:])


NAN = np.where(np.arange(211)[:, None] == 41, np.nan, CORPUS)


@pytest.mark.parametrize("precision", ["int8", "binary"])
def test_vectors_must_be_finite(precision):
    with pytest.raises(ValueError, match="A vector among 33 to 43 of the corpus holds NaN or infinity"):
        QuantizedIndex.quantize(NAN, precision)
    index = QuantizedIndex.quantize(CORPUS, precision, originals=NAN)
    with pytest.raises(ValueError, match="The vector 41 of the corpus holds NaN or infinity"):
        index.search(CORPUS[41:42], 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: QuantizedIndex.quantize(CORPUS, "int4"), '`precision` must be "int8" or "binary", got \'int4\''),
        (lambda: QuantizedIndex.quantize(CORPUS[:0]), "`vectors` is empty: pass at least one vector"),
        (lambda: QuantizedIndex.quantize(CORPUS, "binary", ranges=CORPUS[:2]), '`ranges` must be None for "binary"'),
        (lambda: QuantizedIndex.quantize(CORPUS, ranges=CORPUS[:3]), r"`ranges` must have the shape \(2, 37\)"),
        (
            lambda: QuantizedIndex.quantize(CORPUS, ranges=CORPUS[:2, 1:]),
            r"`ranges` must have the shape \(2, 37\), got",
        ),
        (lambda: QuantizedIndex.quantize(CORPUS, ranges=NAN[40:42]), "`ranges` must be finite numbers, the lowest"),
        (lambda: QuantizedIndex.quantize(CORPUS, ranges=np.sort(CORPUS[:2], 0)[::-1]), "`ranges` must be finite num"),
        (lambda: QuantizedIndex.quantize(CORPUS, ranges=[["a"], ["b"]]), "`ranges` must be numbers"),
        (lambda: QuantizedIndex.quantize(CORPUS.tolist()), r"`vectors` must be an array \(n, H\) of numbers, got \[\["),
        (lambda: QuantizedIndex.quantize(CORPUS[0]), r"`vectors` must be an array \(n, H\) of numbers, got array"),
        (lambda: QuantizedIndex.quantize(CORPUS[:, :0]), "`vectors` must be of a width of at least 1, got 0"),
        (lambda: QuantizedIndex.quantize(CORPUS, originals=CORPUS[1:]), r"`originals` must have the shape \(211, 37\)"),
        (lambda: QuantizedIndex.quantize(CORPUS, oversampling=0), "`oversampling` must be a positive integer"),
        (lambda: QuantizedIndex(CORPUS, WIDTH), r"`codes` must be uint8 \(n, 5\) for vectors of width 37, got float32"),
        (lambda: QuantizedIndex.quantize(CORPUS).search(QUERIES, 212), "`top_k` must be an integer from 1 to 211"),
        (lambda: QuantizedIndex.quantize(CORPUS).search(QUERIES[:, 1:], 2), "vectors of width 37, but the queries"),
    ],
)
def test_errors_of_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
