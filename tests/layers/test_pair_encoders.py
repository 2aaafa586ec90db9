"""Encoders of pairs against numpy versions that read one pair without padding."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.layers import BiDAFEncoder, BiLSTMEncoder, ESIMEncoder, register_encoder
from lmzoo.layers.bidaf import AttentionFlow
from lmzoo.layers.esim import align_texts
from tests.reference.pairs import attention_flow, bidaf, bilstm, esim, softmax
from tests.reference.weights import difference, to_numpy

T, H, E, U, V = 7, 11, 3, 2, 13
# Two adjacent texts; an empty second text; a token of neither; one word each; only padding.
LENGTHS = ((3, 4), (5, 0), (2, 3), (1, 1), (0, 0))
RNG = np.random.default_rng(5)
X = RNG.normal(size=(len(LENGTHS), T, H)).astype("float32")
IDS = RNG.integers(1, V, (len(LENGTHS), T)).astype("int32")
MASK = np.arange(T) < [[a + b + (i == 2)] for i, (a, b) in enumerate(LENGTHS)]
SEGMENTS = ((np.arange(T) >= [[a] for a, _ in LENGTHS]) & MASK).astype("int32")
SEGMENTS[2, 5] = 2


def random_weights(layer):
    """Call the layer, give it random weights, and return them by path without the layer's own name."""
    layer(X, IDS, MASK, SEGMENTS)
    for weight in layer.weights:
        if "seed" not in weight.path:
            weight.assign(RNG.normal(scale=0.5, size=weight.shape))
    return {weight.path.partition("/")[2]: to_numpy(weight).astype("float64") for weight in layer.weights}


def texts_of(i, table):
    """Return the vectors of both texts of a pair, as the LSTMs read them."""
    first, second = LENGTHS[i]
    words = np.concatenate([X[i], table[IDS[i]]], axis=1).astype("float64")
    return words[:first], words[first : first + second]


def test_lstms_read_each_segment_alone():
    layer = BiLSTMEncoder(U, E, V)
    weights = {f"encoding/{path}": value for path, value in random_weights(layer).items()}
    outputs = to_numpy(layer(X, IDS, MASK, SEGMENTS))
    for i, (first, second) in enumerate(LENGTHS):
        texts = texts_of(i, weights["encoding/word_embedding/embeddings"])
        expected = np.concatenate([bilstm(weights, "encoding", text) for text in texts])
        assert difference(outputs[i, : first + second], expected) <= 1e-5
    assert not outputs[~MASK].any()


def test_alignment_follows_the_paper():
    texts = [MASK & (segment == SEGMENTS) for segment in (0, 1)]
    aligned = to_numpy(align_texts(X, *texts))
    for i, (first, second) in enumerate(LENGTHS):
        a, b = X[i, :first], X[i, first : first + second]
        if first and second:
            expected = np.concatenate([softmax(a @ b.T, axis=1) @ b, softmax(a @ b.T, axis=0).T @ a])
            assert difference(aligned[i, : first + second], expected) <= 1e-5
        else:
            assert not aligned[i].any()
    assert not aligned[2, 5].any()


def test_esim_follows_the_paper():
    layer = ESIMEncoder(U, E, V)
    weights = random_weights(layer)
    outputs = to_numpy(layer(X, IDS, MASK, SEGMENTS))
    assert np.isfinite(outputs).all()
    for i in (0, 2, 3):
        expected = esim(weights, *texts_of(i, weights["encoding/word_embedding/embeddings"]))
        assert difference(outputs[i], expected) <= 1e-5


def test_attention_flow_follows_the_paper():
    layer = AttentionFlow()
    question, context = (MASK & (segment == SEGMENTS) for segment in (0, 1))
    layer(X, question, context)
    weight = RNG.normal(size=3 * H).astype("float32")
    for variable, part in zip(layer.weights, np.split(weight, 3), strict=True):
        variable.assign(part[:, None])
    outputs = to_numpy(layer(X, question, context))
    for i in (0, 2, 3):
        first, second = LENGTHS[i]
        expected = attention_flow(weight, X[i, first : first + second], X[i, :first])
        assert difference(outputs[i, first : first + second], expected) <= 1e-5
    assert np.isfinite(outputs).all()
    assert not outputs[~context].any()


def test_bidaf_follows_the_paper():
    layer = BiDAFEncoder(U, E, V)
    weights = random_weights(layer)
    outputs = to_numpy(layer(X, IDS, MASK, SEGMENTS))
    np.testing.assert_allclose(outputs[:, 0], np.tile(weights["no_answer"], (len(LENGTHS), 1)), rtol=1e-6)
    for i in (0, 2, 3):
        first, second = LENGTHS[i]
        expected = bidaf(weights, *texts_of(i, weights["word_embedding/embeddings"]))
        assert difference(outputs[i, first : first + second], expected) <= 1e-5
    is_elsewhere = ~(MASK & (SEGMENTS == 1))
    is_elsewhere[:, 0] = False
    assert (outputs[is_elsewhere] == -1e9).all()


def test_registered_names_are_refused():
    with pytest.raises(ValueError, match=r"The encoder 'esim' is ESIMEncoder. Choose another name"):
        register_encoder("esim", returns="pairs")(BiLSTMEncoder)
