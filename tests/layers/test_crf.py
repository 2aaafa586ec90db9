"""Conditional random fields against sums and maxima over all sequences of labels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from keras import ops
from keras.ops import convert_to_numpy as to_numpy

from lmzoo.layers import TransitionScores
from lmzoo.layers.crf import compute_label_probabilities, decode, find_best_labels, negative_log_likelihood
from lmzoo.text.span_labels import transition_table
from lmzoo.training import CrfLoss
from lmzoo.training.span_metrics import IGNORED, SpanScore, TokenAccuracy
from tests.reference.gradients import value_and_gradients

C = 5
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
# Whether a token begins a word; the rest continue words or are padding. One text has one word, one has none.
WORDS = np.array([[0, 1, 1, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0, 0]], bool)


@pytest.fixture(params=[None, LABELS], ids=["free", "spans"])
def layer(request):
    allowed = None if request.param is None else transition_table(request.param)
    layer = TransitionScores(C, allowed)
    layer.build((None, None, C))
    layer.transitions.assign(np.random.default_rng(2).normal(size=(C + 1, C + 1)))
    return layer


@pytest.fixture
def logits():
    return np.random.default_rng(3).normal(size=(*WORDS.shape, C)).astype("float32")


def paths(layer, logits, words):
    """Return the score of every allowed sequence of labels of a text's words."""
    transitions, positions = to_numpy(layer.transitions), np.flatnonzero(words)
    allowed = np.ones((C + 1, C + 1), bool) if layer.allowed is None else np.array(layer.allowed)
    scores = {}
    for path in itertools.product(range(C), repeat=len(positions)):
        steps = list(itertools.pairwise([C, *path, C]))
        if all(allowed[step] for step in steps):
            emitted = sum(logits[position, label] for position, label in zip(positions, path, strict=True))
            scores[path] = emitted + sum(transitions[step] for step in steps)
    return scores


def all_paths(layer, logits):
    return [paths(layer, *text) for text in zip(logits, WORDS, strict=True)]


def test_the_loss_normalizes_over_all_sequences(layer, logits):
    rng, expected, labels = np.random.default_rng(5), [], np.full(WORDS.shape, IGNORED)
    for i, scores_by_path in enumerate(all_paths(layer, logits)):
        path = list(scores_by_path)[rng.integers(len(scores_by_path))]
        labels[i, WORDS[i]] = path
        expected.append(np.logaddexp.reduce(list(scores_by_path.values())) - scores_by_path[path])
    losses = negative_log_likelihood(layer(logits), ops.convert_to_tensor(labels), ops.convert_to_tensor(WORDS))
    np.testing.assert_allclose(to_numpy(losses), expected, rtol=1e-5, atol=1e-4)
    # The mean over words; a text of the weight 2 counts twice.
    expected = np.array(expected)
    words = WORDS.sum(axis=1)
    scores = layer(logits)
    loss = CrfLoss()
    assert float(loss(labels, scores)) == pytest.approx(expected.sum() / words.sum(), rel=1e-4)
    weights = np.array([2.0, 0.5, 1.0, 0.0])
    mean = (expected * weights).sum() / (words * weights).sum()
    for sample_weight in (weights, np.repeat(weights[:, None], WORDS.shape[1], axis=1)):
        assert float(loss(labels, scores, sample_weight)) == pytest.approx(mean, rel=1e-4)
    assert float(loss(np.full(WORDS.shape, IGNORED), scores)) == 0


def test_forbidden_sequences_have_a_finite_loss(logits):
    """They occur where a text was truncated."""
    layer = TransitionScores(C, transition_table(LABELS))
    labels = np.where(WORDS, LABELS.index("I-PER"), IGNORED)
    assert 0 < float(CrfLoss()(labels, layer(logits))) < 10


def test_the_best_labels_form_the_best_sequence(layer, logits):
    labels = to_numpy(find_best_labels(layer(logits), ops.convert_to_tensor(WORDS)))
    for i, scores_by_path in enumerate(all_paths(layer, logits)):
        assert tuple(labels[i, WORDS[i]]) == max(scores_by_path, key=scores_by_path.get)
    assert (labels[~WORDS] == C).all()


def test_probabilities_of_labels_are_sums_over_sequences(layer, logits):
    scores, words = layer(logits), ops.convert_to_tensor(WORDS)
    probabilities = to_numpy(compute_label_probabilities(scores, words))
    best, certainty = map(to_numpy, decode(scores, words))
    for i, scores_by_path in enumerate(all_paths(layer, logits)):
        positions, values = np.flatnonzero(WORDS[i]), np.array(list(scores_by_path.values()))
        path_probabilities = np.exp(values - np.logaddexp.reduce(values))
        expected = np.zeros((len(positions), C))
        for path, probability in zip(scores_by_path, path_probabilities, strict=True):
            expected[np.arange(len(positions)), np.array(path, int)] += probability
        np.testing.assert_allclose(probabilities[i, WORDS[i]], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            certainty[i, positions], expected[np.arange(len(positions)), best[i, positions]], atol=1e-5
        )
    assert not probabilities[~WORDS].any()


@pytest.mark.quick_cases("spans")
def test_gradients_of_compiled_code_equal_finite_differences(layer, logits):
    labels, allowed = np.where(WORDS, np.array([[3, 1, 2, 0, 2, 0, 0]]), IGNORED), layer.allowed

    def loss(logits, transitions):
        scores = transitions if allowed is None else transitions + np.where(allowed, 0, -1e4).astype("float32")
        return CrfLoss()(labels, ops.pad(logits, ((0, 0), (0, 0), (0, 1)))[:, :, None, :] + scores)

    arrays = [logits, to_numpy(layer.transitions).astype("float32")]
    value, gradients = value_and_gradients(loss, *arrays)
    assert value == pytest.approx(float(loss(*map(ops.convert_to_tensor, arrays))), rel=1e-5)
    rng = np.random.default_rng(7)
    for k, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape).astype("float32")
        losses = []
        for sign in (1, -1):
            shifted = [array + (sign * 1e-2 * direction if i == k else 0) for i, array in enumerate(arrays)]
            losses.append(float(loss(*map(ops.convert_to_tensor, shifted))))
        assert (gradient * direction).sum() == pytest.approx((losses[0] - losses[1]) / 2e-2, rel=0.02, abs=2e-3)
    assert not gradients[0][~WORDS].any()  # tokens that begin no word


def test_metrics_count_the_best_sequences(logits):
    layer = TransitionScores(C, transition_table(LABELS))
    scores, words = layer(logits * 3), ops.convert_to_tensor(WORDS)
    best = to_numpy(find_best_labels(scores, words))
    assert (best[WORDS] != logits.argmax(axis=-1)[WORDS]).any()
    labels = np.where(WORDS, np.random.default_rng(8).integers(0, C, WORDS.shape), IGNORED)
    for metric in (TokenAccuracy(), SpanScore(LABELS), SpanScore(LABELS, "precision")):
        metric.update_state(labels, scores)
        expected = float(metric.result())
        metric.reset_state()
        metric.update_state(labels, np.eye(C + 1, dtype="float32")[best])
        assert float(metric.result()) == expected


def test_the_configuration_has_the_allowed_transitions(layer):
    allowed = TransitionScores.from_config(layer.get_config()).allowed
    np.testing.assert_array_equal(allowed, layer.allowed)
