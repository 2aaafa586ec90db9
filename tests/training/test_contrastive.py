"""Losses and metrics on vectors of pairs and hard negatives, against numpy and sentence-transformers."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.training import MultipleNegativesRanking, PairAccuracy, PairCorrelation, PairCosineError

PAIRS, WIDTH, TEMPERATURE = 5, 7, 0.13


@pytest.fixture
def vectors():
    return np.random.default_rng(3).normal(size=(2 * PAIRS, WIDTH)).astype("float32")


def cosine(a, b):
    return float(np.dot(a.astype("float64"), b) / (np.linalg.norm(a) * np.linalg.norm(b)))


def candidates(row, vectors, texts):
    """Return the partner's cosine, and the cosines of other pairs' other sides, except where texts are the same."""
    partner = row ^ 1
    negatives = [
        i
        for i in range(1 - row % 2, len(vectors), 2)
        if i != partner and texts[i] not in (texts[row], texts[partner]) and texts[i ^ 1] != texts[row]
    ]
    return cosine(vectors[row], vectors[partner]), [cosine(vectors[row], vectors[i]) for i in negatives]


def ranking(vectors, texts):
    losses = []
    for row in range(len(vectors)):
        positive, negatives = candidates(row, vectors, texts)
        scores = np.array([positive, *negatives]) / TEMPERATURE
        losses.append(-np.log(np.exp(scores[0]) / np.exp(scores).sum()))
    return np.array(losses)


TEXTS = {
    "all different": np.arange(10),
    "a text twice on one side": np.array([0, 1, 2, 1, 4, 5, 6, 7, 2, 9]),
    "a text on both sides": np.array([0, 1, 1, 3, 4, 0, 6, 7, 8, 9]),
    "each with itself": np.repeat(np.arange(5), 2),
    "one text alone": np.zeros(10, int),
}


@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
def test_ranking_equals_loops(vectors, texts):
    loss = MultipleNegativesRanking(TEMPERATURE, reduction="none")
    losses = keras.ops.convert_to_numpy(loss(texts.astype("int32"), vectors))
    np.testing.assert_allclose(losses, ranking(vectors, texts), rtol=1e-5, atol=1e-6)
    assert losses.shape == (2 * PAIRS,)


def test_weights_scale_the_pairs_own_terms(vectors):
    weights = np.repeat([0.0, 1.0, 0.5, 3.0, 0.0], 2).astype("float32")
    texts = np.arange(2 * PAIRS)
    expected = (weights * ranking(vectors, texts)).sum() / (2 * PAIRS)
    assert float(MultipleNegativesRanking(TEMPERATURE)(texts, vectors, weights)) == pytest.approx(expected, rel=1e-5)
    labels = np.repeat([0.1, -0.7, 1.0, 0.3, 0.0], 2)
    errors = np.array([(cosine(vectors[r], vectors[r ^ 1]) - labels[r]) ** 2 for r in range(2 * PAIRS)])
    loss = float(PairCosineError()(labels, vectors, weights))
    assert loss == pytest.approx((weights * errors).sum() / (2 * PAIRS), rel=1e-5)


def test_small_losses_have_no_rounding_errors():
    vectors = np.repeat(np.eye(3, 7), 2, axis=0).astype("float32")
    losses = keras.ops.convert_to_numpy(MultipleNegativesRanking(0.05, reduction="none")(np.arange(6), vectors))
    np.testing.assert_allclose(losses, np.log1p(2 * np.exp(-1 / 0.05)), rtol=1e-4)


def test_a_single_pair_has_no_loss(vectors):
    assert float(MultipleNegativesRanking()(np.arange(2), vectors[:2])) == 0
    assert float(MultipleNegativesRanking()(np.arange(2), np.zeros((2, 7), "float32"))) == 0


@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
def test_accuracy_equals_loops(vectors, texts):
    metric, weights = PairAccuracy(), np.repeat([2.0, 0.0, 1.0, 0.5, 4.0], 2).astype("float32")
    vectors[1::2] += 0.8 * vectors[::2]  # so that only some partners are nearest
    cosines = [candidates(row, vectors, texts) for row in range(10)]
    is_correct = [positive > max(negatives, default=-2) for positive, negatives in cosines]
    metric.update_state(texts, vectors, weights)
    assert float(metric.result()) == pytest.approx((weights * is_correct).sum() / weights.sum(), rel=1e-6)
    if texts is TEXTS["all different"]:
        assert 0 < np.mean(is_correct) < 1


def test_accuracy_is_a_mean_over_batches(vectors):
    metric = PairAccuracy()
    metric.update_state(np.arange(2), vectors[:2])  # one pair: correct
    metric.update_state(np.arange(4), np.eye(4, 7))  # all are equally near: the first is chosen
    assert float(metric.result()) == pytest.approx((2 + 2) / 6)


def test_correlation_equals_numpy_over_all_pairs(vectors):
    labels = np.array([0.1, -0.7, 1.0, 0.3, 0.0])
    cosines = [cosine(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    metric = PairCorrelation()
    for part in (slice(0, 4), slice(4, 10)):
        metric.update_state(np.repeat(labels, 2)[part], vectors[part])
    assert float(metric.result()) == pytest.approx(np.corrcoef(labels, cosines)[0, 1], rel=1e-5)
    weighted, counts = PairCorrelation(), np.array([3, 1, 2, 0, 1])
    weighted.update_state(np.repeat(labels, 2), vectors, np.repeat(counts, 2))
    expected = np.corrcoef(np.repeat(labels, counts), np.repeat(cosines, counts))[0, 1]
    assert float(weighted.result()) == pytest.approx(expected, rel=1e-5)


# === Hard negatives ===


GROUP = 4  # a pair and two negatives


@pytest.fixture
def groups():
    return np.random.default_rng(5).normal(size=(GROUP * PAIRS, WIDTH)).astype("float32")


def labels_of(ids):
    """Return each text's label: the ids of its group."""
    return np.repeat(np.reshape(ids, (-1, GROUP)), GROUP, axis=0).astype("int32")


def ranking_of_groups(vectors, ids):
    """Return each group's loss by loops: first texts among all others, second texts among first texts."""
    table, texts = vectors.reshape(-1, GROUP, WIDTH), np.reshape(ids, (-1, GROUP))

    def loss(vector, positive, negatives_of):
        scores = np.exp(np.array([cosine(vector, x) for x in (positive, *negatives_of)]) / TEMPERATURE)
        return -np.log(scores[0] / scores.sum())

    losses = []
    for i, (first, second) in enumerate(texts[:, :2]):
        other_groups = [j for j in range(len(texts)) if j != i and texts[j, 0] != first]
        seconds = [table[j, 1] for j in other_groups if texts[j, 1] not in (first, second)]
        negatives = [
            table[j, k] for j in range(len(texts)) for k in range(2, GROUP) if texts[j, k] not in (first, second)
        ]
        firsts = [table[j, 0] for j in other_groups if texts[j, 0] != second and texts[j, 1] != second]
        forward = loss(table[i, 0], table[i, 1], seconds + negatives)
        losses.append((forward + loss(table[i, 1], table[i, 0], firsts)) / 2)
    return np.array(losses)


GROUPS = {
    "all different": np.arange(20),
    "negatives that are partners of others": np.array([0, 1, 2, 3, 4, 5, 1, 6, 7, 8, 0, 9, 7, 10, 5, 11, 12, 13, 3, 2]),
}


@pytest.mark.parametrize("ids", GROUPS.values(), ids=GROUPS)
def test_hard_negatives_are_candidates_for_all_first_texts(groups, ids):
    expected = ranking_of_groups(groups, ids)
    loss = MultipleNegativesRanking(TEMPERATURE, reduction="none")
    losses = keras.ops.convert_to_numpy(loss(labels_of(ids), groups))
    np.testing.assert_allclose(losses, np.repeat(expected, GROUP), rtol=1e-5, atol=1e-6)
    weights = np.array([0.0, 1.0, 0.5, 3.0, 2.0], "float32")
    weighted = float(MultipleNegativesRanking(TEMPERATURE)(labels_of(ids), groups, np.repeat(weights, GROUP)))
    assert weighted == pytest.approx((weights * expected).mean(), rel=1e-5)


def test_accuracy_counts_hard_negatives(groups):
    table = groups.reshape(-1, GROUP, WIDTH)
    table[:, 1] += 3 * table[:, 0]  # partners are nearest,
    table[2, 3] = 2 * table[2, 0]  # except to this first text
    table[2, 0] += 0.1 * table[2, 1]
    metric = PairAccuracy()
    metric.update_state(labels_of(np.arange(20)), groups, np.repeat([1.0, 1.0, 3.0, 0.0, 0.0], GROUP))
    assert float(metric.result()) == pytest.approx((2 + 3 * 0.5) / 5)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("size", [2, GROUP])
def test_ranking_equals_sentence_transformers(groups, size, symmetric):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    torch = pytest.importorskip("torch")
    directions = ("query_to_doc", "doc_to_query")[: 1 + symmetric]
    peer = losses.MultipleNegativesRankingLoss(
        None, scale=1 / TEMPERATURE, directions=directions, partition_mode="per_direction"
    )
    vectors = np.ascontiguousarray(groups.reshape(-1, GROUP, WIDTH)[:, :size])
    columns = [torch.tensor(vectors[:, k]) for k in range(size)]
    expected = float(peer.compute_loss_from_embeddings(columns, None))
    ids = np.arange(2 * PAIRS) if size == 2 else labels_of(np.arange(GROUP * PAIRS))
    loss = MultipleNegativesRanking(TEMPERATURE, symmetric=symmetric)
    assert float(loss(ids, vectors.reshape(-1, WIDTH))) == pytest.approx(expected, abs=1e-6)
