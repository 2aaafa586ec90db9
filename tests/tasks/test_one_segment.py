"""A BERT with one segment gives the results of one with two, although its preprocessor makes segment ids."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo import analysis
from lmzoo.models import MaskedLM, TextClassifier, TextEmbedder, TokenClassifier
from lmzoo.registry.family import families
from lmzoo.testing import randomize, tiny_backbone, tiny_preprocessor, tiny_texts
from lmzoo.training import distill

BERT = families()["bert"]
TEXTS = tiny_texts(5)


def make_pair(cls, **settings):
    """Return two tasks with the same weights; the second one has another segment, which these texts do not use."""
    tasks = [
        cls(tiny_backbone(BERT, num_segments=count, dropout=0.0), tiny_preprocessor(BERT), **settings)
        for count in (1, 2)
    ]
    randomize(tasks[0])
    for source, target in zip(*(task.weights for task in tasks), strict=True):
        values = keras.ops.convert_to_numpy(source)
        target.assign(values if values.shape == target.shape else np.concatenate([values, values + 3]))
    return tasks


RESULTS = {
    "hidden states": (TextEmbedder, {}, lambda task: analysis.hidden_states(task, TEXTS)[1]),
    "attention": (TextEmbedder, {}, lambda task: [a.scores for a in analysis.attention(task, TEXTS)]),
    "embeddings": (TextEmbedder, {}, lambda task: [task.embed(TEXTS)]),
    "vectors of words": (TextEmbedder, {}, lambda task: [w.vectors for w in task.embed(TEXTS, level="word")]),
    "classes": (TextClassifier, {"num_classes": 3}, lambda task: [task.predict(TEXTS, verbose=0)]),
    "tags": (TokenClassifier, {"labels": ["a", "b"]}, lambda task: [task.predict(TEXTS, verbose=0)]),
    "losses": (
        TextClassifier, {"num_classes": 3},
        lambda task: task.fit(TEXTS, [0, 1, 2, 0, 1], epochs=2, batch_size=3, verbose=0).history["loss"],
    ),
    "distillation": (
        MaskedLM, {}, lambda task: distill(task.copy_with(), task, TEXTS, batch_size=3, verbose=0).history["loss"]
    ),
}  # fmt: skip


@pytest.mark.slow_cases("distillation", "losses")
@pytest.mark.parametrize("name", RESULTS)
def test_one_segment_gives_the_results_of_two(name):
    cls, settings, compute = RESULTS[name]
    results, expected_results = (compute(task) for task in make_pair(cls, **settings))
    for actual, expected in zip(results, expected_results, strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-5)


def test_a_batch_without_examples_changes_nothing():
    task = make_pair(TextClassifier, num_classes=3)[0]
    task.compile(keras.optimizers.SGD(0.5))  # without weight decay
    before = [np.array(weight) for weight in task.weights]
    losses = task.train_on_batch([], [])
    assert np.ravel(losses)[0] == 0
    for weight, old in zip(task.weights, before, strict=True):
        np.testing.assert_array_equal(weight, old)
