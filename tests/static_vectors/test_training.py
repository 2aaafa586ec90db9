"""Training of word vectors: GloVe's counts and loss, compared with numpy, and the other algorithms, with gensim."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from lmzoo.models import StaticEmbedder
from lmzoo.static_vectors import GloveLoss
from lmzoo.static_vectors.glove import _make_model, count_pairs, train_glove

TEXTS = ["the king rules the land", "the queen rules the land", ["a", "boy", "sleeps"], "a girl sleeps", ""] * 5


def test_glove_loss_equals_the_formula() -> None:
    rng = np.random.default_rng(3)
    counts = rng.uniform(0.1, 40, (23, 1))
    scores = rng.normal(size=(23, 1))
    weights = np.where(counts < 10, (counts / 10) ** 0.6, 1)
    expected = (weights * (scores - np.log(counts)) ** 2)[:, 0]
    assert (counts > 10).any()
    loss = GloveLoss(x_max=10, alpha=0.6)
    actual = ops.convert_to_numpy(loss.call(ops.cast(counts, "float32"), ops.cast(scores, "float32")))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    np.testing.assert_allclose(float(loss(counts, scores)), expected.sum(), rtol=1e-5)
    clone = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert (clone.x_max, clone.alpha, clone.reduction) == (10, 0.6, "sum")


@pytest.mark.parametrize("max_pairs", [1, 1 << 20])
def test_counts_of_pairs_equal_a_loop(max_pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmzoo.static_vectors.glove._MAX_PAIRS", max_pairs)
    rng = np.random.default_rng(5)
    texts = [rng.integers(-1, 7, length) for length in (0, 1, 2, 11, 13)]
    expected = np.zeros((7, 7))
    for ids in texts:
        for i, first in enumerate(ids):
            for j, second in enumerate(ids):
                if first >= 0 and second >= 0 and 0 < abs(i - j) <= 3:
                    expected[first, second] += 1 / abs(i - j)
    firsts, seconds, counts = count_pairs(texts, 7, window=3)
    dense = np.zeros((7, 7))
    dense[firsts, seconds] = counts
    np.testing.assert_allclose(dense, expected)
    assert len(counts) == (expected > 0).sum()


def test_pairs_of_a_long_text_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    import scipy.sparse

    part_sizes = []
    coo_array = scipy.sparse.coo_array

    def record_size(part: Any, shape: Any) -> Any:
        part_sizes.append(len(part[0]))
        return coo_array(part, shape)

    monkeypatch.setattr("lmzoo.static_vectors.glove._MAX_PAIRS", 13)
    monkeypatch.setattr(scipy.sparse, "coo_array", record_size)
    ids = np.random.default_rng(5).integers(0, 7, 101)
    _, _, counts = count_pairs([ids], 7, window=3, verbose=False)
    assert sum(part_sizes) == 100 + 99 + 98
    assert max(part_sizes) <= 2 * 13
    np.testing.assert_allclose(counts.sum(), 2 * (100 + 99 / 2 + 98 / 3))


def test_glove_equals_numpy() -> None:
    """Both take three steps of AdaGrad over all pairs of words, from the same initial vectors."""
    rng = np.random.default_rng(7)
    texts = [rng.integers(0, 11, length) for length in (5, 13, 17)]
    settings: dict[str, Any] = {"x_max": 2.0, "alpha": 0.5, "learning_rate": 0.3}
    actual = train_glove(texts, 11, hidden_dim=5, window=3, epochs=3, seed=3, verbose=False, **settings)
    model = _make_model(11, 5, seed=3)
    names = ("first_vector", "second_vector", "first_bias", "second_bias")
    tables = [ops.convert_to_numpy(model.get_layer(name).embeddings).astype("float64") for name in names]
    accumulators = [np.ones_like(table) for table in tables]
    firsts, seconds, counts = count_pairs(texts, 11, window=3)
    for _ in range(3):
        w, v, b, c = tables[0][firsts], tables[1][seconds], tables[2][firsts], tables[3][seconds]
        errors = (w * v).sum(axis=1, keepdims=True) + b + c - np.log(counts)[:, None]
        slopes = 2 * np.minimum((counts / 2) ** 0.5, 1)[:, None] * errors
        pairs = ((firsts, slopes * v), (seconds, slopes * w), (firsts, slopes), (seconds, slopes))
        for table, accumulator, (rows, gradients) in zip(tables, accumulators, pairs, strict=True):
            gradient = np.zeros_like(table)
            np.add.at(gradient, rows, gradients)
            accumulator += gradient**2
            table -= 0.3 * gradient / np.sqrt(accumulator)
    np.testing.assert_allclose(actual, tables[0] + tables[1], atol=1e-5)


def test_glove_repeats_with_the_seed() -> None:
    settings: dict[str, Any] = {"hidden_dim": 7, "window": 3, "min_frequency": 5, "verbose": False, "batch_size": 11}
    embedder = StaticEmbedder.train(TEXTS, "glove", epochs=2, seed=3, **settings)
    assert embedder.words[0] == "the"
    assert {*embedder.words} == {"the", "king", "queen", "rules", "land", "a", "boy", "girl", "sleeps"}
    assert embedder.vectors.shape == (9, 7)
    repeated = StaticEmbedder.train(TEXTS, "glove", epochs=2, seed=3, **settings)
    np.testing.assert_allclose(repeated.vectors, embedder.vectors, atol=1e-6)
    changed_seed = StaticEmbedder.train(TEXTS, "glove", epochs=2, seed=4, **settings)
    assert np.abs(changed_seed.vectors - embedder.vectors).max() > 1e-3


@pytest.mark.parametrize("algorithm", ["skipgram", "cbow", "fasttext"])
def test_vectors_equal_gensims(algorithm: str) -> None:
    gensim = pytest.importorskip("gensim")
    settings = {"bucket": 101} if algorithm == "fasttext" else {}
    embedder = StaticEmbedder.train(TEXTS, algorithm, hidden_dim=7, window=3, min_frequency=5, seed=3, **settings)
    model = gensim.models.FastText if algorithm == "fasttext" else gensim.models.Word2Vec
    sentences = [text.split() if isinstance(text, str) else text for text in TEXTS]
    sizes = {"vector_size": 7, "window": 3, "min_count": 5, "seed": 3, "workers": 1, **settings}
    expected = model(sentences, sg=int(algorithm != "cbow"), **sizes).wv
    assert embedder.words == expected.index_to_key
    np.testing.assert_allclose(embedder.vectors, expected.vectors, atol=1e-6)
    if algorithm == "fasttext":
        (unknown,) = embedder.embed([["kings"]], level="word")
        np.testing.assert_allclose(unknown.vectors[0], expected["kings"], atol=1e-6)


def test_all_words_of_a_long_text_are_trained_on() -> None:
    """Gensim itself ignores what follows the first 10,000 words of a sentence."""
    gensim = pytest.importorskip("gensim")
    words = ["a", "boy", "sleeps"] * 3334 + ["the", "king", "rules"] * 7
    embedder = StaticEmbedder.train([words], hidden_dim=5, window=3, min_frequency=5, epochs=1, seed=3)
    sizes = {"vector_size": 5, "window": 3, "min_count": 5, "epochs": 1, "seed": 3, "workers": 1}
    expected = gensim.models.Word2Vec([words[:10_000], words[10_000:]], sg=1, **sizes).wv
    assert embedder.words == expected.index_to_key
    np.testing.assert_allclose(embedder.vectors, expected.vectors, atol=1e-6)


def test_missing_gensim_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(ImportError, match=r"pip install 'lmzoo\[vectors\]'"):
        StaticEmbedder.train(TEXTS)


def test_errors_of_arguments() -> None:
    with pytest.raises(ValueError, match="`algorithm` must be one of 'skipgram', 'cbow', 'fasttext', 'glove'"):
        StaticEmbedder.train(TEXTS, "lsa")
    with pytest.raises(ValueError, match="`window` must be a positive integer, got 0"):
        StaticEmbedder.train(TEXTS, window=0)
    with pytest.raises(ValueError, match="No word occurs 99 times"):
        StaticEmbedder.train(TEXTS, min_frequency=99)
    with pytest.raises(ValueError, match="No two words of the vocabulary occur together"):
        StaticEmbedder.train(["a", "b"], "glove", min_frequency=1)
    with pytest.raises(ValueError, match="`x_max` must be a positive number"):
        StaticEmbedder.train(TEXTS, "glove", x_max=0)
    with pytest.raises(TypeError, match=r"texts\[1\]"):
        StaticEmbedder.train(["a", None], "glove")
