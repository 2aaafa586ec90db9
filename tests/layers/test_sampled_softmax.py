"""The softmax over a sample of words: its values for a given sample, and the drawing of samples."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from lmzoo.layers import SampledSoftmax
from lmzoo.layers.sampled_softmax import draw_words, log_uniform_probabilities
from tests.reference.weights import to_numpy

V, P = 23, 5
ZIPF = np.array([np.log((r + 2) / (r + 1)) / np.log(V + 1) for r in range(V)])
rng = np.random.default_rng(3)


def build(num_sampled, **arguments):
    layer = SampledSoftmax(V, num_sampled, **arguments)
    layer.build((None, None, P))
    layer.bias.assign(rng.normal(size=V))
    return layer


def inputs(shape=(2, 3)):
    vectors, targets = rng.normal(size=(*shape, P)).astype("float32"), rng.integers(0, V, shape)
    targets[0, 1] = -1
    return vectors, targets


def test_probabilities_are_log_uniform():
    probabilities = to_numpy(log_uniform_probabilities(ops.arange(V), V))
    np.testing.assert_allclose(probabilities, ZIPF, rtol=1e-5)
    assert probabilities.sum() == pytest.approx(1, abs=1e-5)


def test_the_softmax_is_over_the_sample():
    """Each row is the softmax over its target and the sampled words that differ from it."""
    layer, time = build(4), 3.7
    vectors = rng.normal(size=(3, P)).astype("float32")
    targets, sample = np.array([11, 2, 0]), np.array([2, 19, 7, 0])
    log_probabilities = to_numpy(layer.among(vectors, targets, sample, time))
    kernel, bias = to_numpy(layer.kernel), to_numpy(layer.bias)
    for row, (x, target) in enumerate(zip(vectors, targets, strict=True)):
        words = [target, *(word for word in sample if word != target)]
        logits = [x @ kernel[word] + bias[word] - np.log(1 - np.exp(-ZIPF[word] * time)) for word in words]
        expected = logits[0] - np.log(np.sum(np.exp(logits)))
        assert log_probabilities[row] == pytest.approx(expected, abs=1e-5), f"row {row}"


@pytest.mark.parametrize(("num_sampled", "training"), [(7, False), (V, True), (V + 1, True)])
def test_large_samples_and_inference_use_all_words(num_sampled, training):
    layer, (vectors, targets) = build(num_sampled), inputs()
    logits = vectors.astype("float64") @ to_numpy(layer.kernel).T + to_numpy(layer.bias)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = np.take_along_axis(log_probabilities, np.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    expected[targets < 0] = 0
    np.testing.assert_allclose(to_numpy(layer(vectors, targets, training=training)), expected, atol=1e-5)


def test_every_call_draws_a_new_sample():
    (vectors, targets), layers = inputs(), [build(7, seed=seed) for seed in (1, 1, 2)]
    for layer in layers[1:]:
        layer.set_weights(layers[0].get_weights())
    first, same_seed, other_seed = (to_numpy(layer(vectors, targets, training=True)) for layer in layers)
    np.testing.assert_array_equal(first, same_seed)
    assert not np.allclose(first, other_seed)
    assert not np.allclose(first, to_numpy(layers[0](vectors, targets, training=True)))
    assert first[0, 1] == 0
    assert (first[targets >= 0] < 0).all()


@pytest.mark.slow
def test_samples_are_drawn_without_replacement():
    size, draws, generator = 7, 700, keras.random.SeedGenerator(5)
    samples = [[*map(ops.convert_to_numpy, draw_words(V, size, generator))] for _ in range(draws)]
    assert {(len(set(ranks.tolist())), ranks.shape) for ranks, _ in samples} == {(size, (size,))}
    is_drawn = np.zeros((draws, V))
    for row, (ranks, _) in zip(is_drawn, samples, strict=True):
        row[ranks] = 1
    reference = np.zeros(V)
    for _ in range(20 * draws):
        chosen = dict.fromkeys(rng.choice(V, 60, p=ZIPF).tolist())
        reference[list(chosen)[:size]] += 1 / (20 * draws)
    np.testing.assert_allclose(is_drawn.mean(axis=0), reference, atol=4.5 * np.sqrt(0.25 / draws))
    # Divided by the probabilities, sums over samples equal the sum over all words on average.
    times = np.array([time for _, time in samples])[:, None]
    values = np.linspace(1, 3, V)
    sums = (is_drawn * values / (1 - np.exp(-ZIPF * times))).sum(axis=1)
    assert sums.mean() == pytest.approx(values.sum(), abs=4 * sums.std() / np.sqrt(draws))
    assert sums.std() / np.sqrt(draws) < 0.03 * values.sum()


def test_an_empty_sample_is_refused():
    with pytest.raises(ValueError, match="`num_sampled` must be a positive integer, got 0"):
        SampledSoftmax(V, 0)
