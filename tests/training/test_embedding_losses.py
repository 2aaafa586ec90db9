"""Losses of graded pairs, triplets and truncated vectors, against sentence-transformers and numpy."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.training import (
    AngleLoss,
    CosentLoss,
    MatryoshkaLoss,
    MultipleNegativesRanking,
    PairCosineError,
    TripletAccuracy,
    TripletLoss,
)
from tests.reference.gradients import value_and_gradients

COUNT, WIDTH, TEMPERATURE = 5, 7, 0.13
LABELS = np.array([0.4, 2.0, 0.4, -1.0, 3.5], "float32")  # two are equal
PAIRED = np.repeat(LABELS, 2)


def vectors_of(size, width=WIDTH):
    return np.random.default_rng(size).normal(size=(size * COUNT, width)).astype("float32")


def columns_of(vectors, size, torch):
    table = vectors.reshape(-1, size, vectors.shape[-1])
    return [torch.tensor(table[:, k]) for k in range(size)]


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def peers():
    return pytest.importorskip("sentence_transformers.sentence_transformer.losses")


# === Graded pairs ===


@pytest.mark.parametrize("width", [WIDTH, 6])
@pytest.mark.parametrize("name", ["CoSENTLoss", "AnglELoss"])
def test_graded_pairs_equal_sentence_transformers(torch, peers, name, width):
    loss = {"CoSENTLoss": CosentLoss, "AnglELoss": AngleLoss}[name]
    vectors = vectors_of(2, width)
    for scale, temperature in (({"scale": 1 / TEMPERATURE}, [TEMPERATURE]), ({}, [])):
        peer = getattr(peers, name)(None, **scale)
        expected = float(peer.compute_loss_from_embeddings(columns_of(vectors, 2, torch), torch.tensor(LABELS)))
        assert float(loss(*temperature)(PAIRED, vectors)) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_equal_labels_have_no_loss():
    for loss in (CosentLoss(), AngleLoss()):
        assert float(loss(np.ones(2 * COUNT), vectors_of(2))) == 0
        assert float(loss(np.ones(2), vectors_of(2)[:2])) == 0


def test_cosine_errors_equal_sentence_transformers(torch, peers):
    vectors, labels = vectors_of(2), LABELS / 4
    peer = peers.CosineSimilarityLoss(None)
    if not hasattr(peer, "compute_loss_from_embeddings"):
        pytest.skip("this version has no loss of embeddings")
    expected = float(peer.compute_loss_from_embeddings(columns_of(vectors, 2, torch), torch.tensor(labels)))
    assert float(PairCosineError()(np.repeat(labels, 2), vectors)) == pytest.approx(expected, abs=1e-6)


# === Triplets ===


@pytest.mark.parametrize("margin", [0.3, 5.0])
@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_triplets_equal_sentence_transformers(torch, peers, distance, margin):
    from sentence_transformers.sentence_transformer.losses import TripletDistanceMetric

    vectors = vectors_of(3)
    peer = peers.TripletLoss(None, getattr(TripletDistanceMetric, distance.upper()), margin)
    expected = float(peer.compute_loss_from_embeddings(columns_of(vectors, 3, torch), None))
    assert expected > 0
    loss = float(TripletLoss(margin, distance)(np.zeros(3 * COUNT), vectors))
    assert loss == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_triplets_equal_numpy():
    vectors, weights = vectors_of(3), np.array([2.0, 0.0, 1.0, 0.5, 4.0], "float32")
    anchors, positives, negatives = vectors[::3], vectors[1::3], vectors[2::3]
    gaps = np.linalg.norm(anchors - positives, axis=1) - np.linalg.norm(anchors - negatives, axis=1)
    expected = np.maximum(gaps + 1, 0)
    assert (expected == 0).any()
    assert (expected > 0).any()
    losses = keras.ops.convert_to_numpy(TripletLoss(reduction="none")(np.zeros(15), vectors))
    np.testing.assert_allclose(losses, np.repeat(expected, 3), rtol=1e-5, atol=1e-6)
    weighted = float(TripletLoss()(np.zeros(15), vectors, np.repeat(weights, 3)))
    assert weighted == pytest.approx((weights * expected).mean(), rel=1e-5)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    is_correct = (unit[::3] * (unit[1::3] - unit[2::3])).sum(axis=1) > 0
    metric = TripletAccuracy()
    metric.update_state(np.zeros(15), vectors, np.repeat(weights, 3))
    assert float(metric.result()) == pytest.approx((weights * is_correct).sum() / weights.sum(), rel=1e-6)


def test_gradients_are_finite_where_texts_are_equal():
    vectors, labels = np.repeat(vectors_of(1)[:1], 6, axis=0), np.array([0, 0, 1, 1, 2, 2.0])
    for loss in (TripletLoss(), TripletLoss(distance="cosine"), CosentLoss(), AngleLoss()):
        for x in (vectors, np.zeros_like(vectors)):
            _, (gradient,) = value_and_gradients(lambda x, loss=loss: loss(labels, x), x, compiled=False)
            assert np.isfinite(gradient).all()


# === Truncated vectors ===


def test_truncated_vectors_equal_sentence_transformers(torch, peers):
    class Identity(torch.nn.Module):
        """A model whose inputs are its outputs."""

        def forward(self, features):
            return {"sentence_embedding": features["vectors"]}

        def get_embedding_dimension(self):
            return WIDTH

    vectors, model = vectors_of(2), Identity()
    peer = peers.MatryoshkaLoss(model, peers.CoSENTLoss(model), [WIDTH, 5, 2], [1, 0.5, 2])
    features = [{"vectors": column} for column in columns_of(vectors, 2, torch)]
    expected = float(peer(features, torch.tensor(LABELS)))
    loss = float(MatryoshkaLoss(CosentLoss(), [WIDTH, 5, 2], [1, 0.5, 2])(PAIRED, vectors))
    assert loss == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_losses_of_truncated_vectors_are_added():
    vectors, weights = vectors_of(2), np.repeat([0.0, 1.0, 0.5, 3.0, 2.0], 2).astype("float32")
    inner = MultipleNegativesRanking(TEMPERATURE)
    expected = sum(float(inner(np.arange(10), vectors[:, :width], weights)) for width in (3, 7))
    assert float(MatryoshkaLoss(inner, [3, 7])(np.arange(10), vectors, weights)) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match=r"`widths` must be .* at most 7, the width of the vectors, got"):
        MatryoshkaLoss(inner, [3, 8])(np.arange(10), vectors)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MatryoshkaLoss("mse", [3]), "`loss` must be"),
        (lambda: MatryoshkaLoss(CosentLoss(), []), "`widths` must be a list of distinct positive integers, got"),
        (lambda: MatryoshkaLoss(CosentLoss(), [3, 3]), "`widths` must be"),
        (lambda: MatryoshkaLoss(CosentLoss(), [0]), "`widths` must be"),
        (lambda: MatryoshkaLoss(CosentLoss(), 3), "`widths` must be"),
        (lambda: MatryoshkaLoss(CosentLoss(), [3], [1, 2]), "`weights` must be"),
        (lambda: CosentLoss(0), "`temperature` must be a positive number"),
        (lambda: AngleLoss("a"), "`temperature` must be a positive number"),
        (lambda: TripletLoss(-1), "`margin` must be a positive number"),
        (lambda: TripletLoss(distance="manhattan"), "`distance` must be"),
        (lambda: MultipleNegativesRanking(symmetric=1), "`symmetric` must be a bool"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "loss",
    [
        CosentLoss(0.3, name="a"),
        AngleLoss(0.3),
        TripletLoss(0.3, "cosine", reduction="sum"),
        MatryoshkaLoss(TripletLoss(0.3), [5, 3], [1.0, 2.0]),
        MultipleNegativesRanking(0.3, name="a", symmetric=False),
        PairCosineError(reduction="sum"),
    ],
)
def test_losses_survive_serialization(loss):
    clone = keras.losses.deserialize(keras.losses.serialize(loss))
    assert clone.get_config() == loss.get_config()
    vectors = vectors_of(6)
    labels = np.repeat(np.arange(15), 2)
    assert float(clone(labels, vectors)) == float(loss(labels, vectors)) > 0
