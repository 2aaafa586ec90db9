"""Weights of words and of their classes in `TokenClassifier`; the loss is compared with numpy."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import lmzoo.training
from lmzoo.data import from_table
from lmzoo.models import TokenClassifier
from lmzoo.registry.family import families
from lmzoo.testing import tiny_task
from lmzoo.text import TextWarning
from lmzoo.text.probabilities import log_softmax
from lmzoo.training.span_metrics import IGNORED
from tests.reference.weights import randomise

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
# The first word has two tokens: "film", "##s".
TEXTS = [["films", "was", "the", "plot"], ["dull", "film"], [], ["bad", "plot", "films", "."], ["a"]]
TAGS = [["B-PER", "O", -100, "B-LOC"], ["O", "B-LOC"], [], ["O", "B-PER", "I-PER", "O"], ["B-LOC"]]
WEIGHTS = [[0.5, 2.0, 9.0, 0.0], [3.0, 1.0], [], [1.0, 0.25, 5.0, 1.5], [2.0]]
CLASS_WEIGHT = {"B-PER": 3.0, "O": 0.5, 3: 0.0}


@pytest.fixture
def task(tiny):
    task = TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=LABELS)
    randomise(task)
    return task


def compute_scores(task, texts, tags, weights):
    """Return the words' weighted mean of the negative log-likelihood, and their weighted accuracy."""
    encoded = task.encode_inputs(texts)
    logits = task.predict(texts, verbose=0)  # (n, T, C)
    losses, hits, total = 0.0, 0.0, 0.0
    for i, (begin, end) in enumerate(zip(encoded.word_splits[:-1], encoded.word_splits[1:], strict=True)):
        for column, tag, weight in zip(encoded.first[begin:end], tags[i], weights[i], strict=True):
            if column >= 0 and tag != -100:
                label = LABELS.index(tag)
                losses -= weight * log_softmax(logits[i, column][None])[0, label]
                hits += weight * (logits[i, column].argmax() == label)
                total += weight
    return losses / total, hits / total


def weights_by_class(tags):
    table = {"O": 0.5, "B-PER": 3.0, "I-PER": 1.0, "B-LOC": 0.0, "I-LOC": 1.0}
    return [[table.get(tag, 1.0) for tag in text_tags] for text_tags in tags]


def multiply(weights, factors):
    return [[a * b for a, b in zip(*rows, strict=True)] for rows in zip(weights, factors, strict=True)]


def fit_one_batch(task, *args, **kwargs):
    """Return the logs of `fit` for one batch of all texts, before its step."""
    task.compile(keras.optimizers.SGD(0.0))
    return task.fit(*args, batch_size=len(TEXTS), verbose=0, **kwargs).history


def test_weights_of_words(task):
    expected = compute_scores(task, TEXTS, TAGS, WEIGHTS)
    scores = task.evaluate(TEXTS, TAGS, sample_weight=WEIGHTS, batch_size=8, verbose=0)
    assert scores[:2] == pytest.approx(expected, abs=1e-5)
    history = fit_one_batch(task, TEXTS, TAGS, sample_weight=WEIGHTS, validation_data=(TEXTS, TAGS, WEIGHTS))
    assert (history["loss"][0], history["accuracy"][0]) == pytest.approx(expected, abs=1e-5)
    assert (history["val_loss"][0], history["val_accuracy"][0]) == pytest.approx(expected, abs=1e-5)
    unweighted = compute_scores(task, TEXTS, TAGS, [[1.0] * len(tags) for tags in TAGS])
    assert abs(unweighted[0] - expected[0]) > 1e-3


def test_weights_are_padded_like_their_labels(task):
    examples = task.encode_examples(TEXTS, TAGS, WEIGHTS)
    _, labels, weights = task.make_batch(examples, np.array([1, 0]), 11, np.random.default_rng(0))
    assert labels[1].tolist() == [IGNORED, 1, IGNORED, 0, IGNORED, 3, IGNORED, *[IGNORED] * 4]
    assert weights[1].tolist() == [0, 0.5, 0, 2, 9, 0, 0, *[0] * 4]
    assert weights[0].tolist() == [0, 3, 1, *[0] * 8]


@pytest.mark.quick_cases("elmo")
@pytest.mark.parametrize("name", ["elmo", "roberta"])
def test_weights_of_words_with_other_tokenizers(name):
    task = tiny_task(TokenClassifier, families()[name], labels=LABELS)
    expected = compute_scores(task, TEXTS, TAGS, WEIGHTS)
    assert task.evaluate(TEXTS, TAGS, sample_weight=WEIGHTS, verbose=0)[:2] == pytest.approx(expected, abs=1e-5)


def test_weights_of_truncated_words(task):
    task.preprocessor.sequence_length = 5  # three tokens of a text
    with pytest.warns(TextWarning):
        scores = task.evaluate(TEXTS, TAGS, sample_weight=WEIGHTS, batch_size=8, verbose=0)
    with pytest.warns(TextWarning):
        expected = compute_scores(task, TEXTS, TAGS, WEIGHTS)
    assert scores[:2] == pytest.approx(expected, abs=1e-5)


def test_all_forms_of_weights_and_texts(task):
    texts, tags = ["films was", "dull film"], [["B-PER", "O"], ["O", "O"]]
    spans = [[{"start": 0, "end": 5, "label": "PER"}], []]
    weights = np.array([[2.0, 0.5], [0.25, 3.0]])
    expected = compute_scores(task, texts, tags, weights)
    encoded = task.encode_inputs(texts)
    forms = ((texts, spans, [weights[0], (0.25, 3)]), (texts, tags, weights), (encoded, tags, weights))
    for x, y, sample_weight in forms:
        scores = task.evaluate(x, y, sample_weight=sample_weight, verbose=0)
        assert scores[:2] == pytest.approx(expected, abs=1e-5)


def test_validation_split_keeps_the_weights(task):
    # The last two texts are held out.
    history = fit_one_batch(task, TEXTS, TAGS, sample_weight=WEIGHTS, class_weight=CLASS_WEIGHT, validation_split=0.4)
    trained = multiply(WEIGHTS[:3], weights_by_class(TAGS[:3]))
    assert history["loss"][0] == pytest.approx(compute_scores(task, TEXTS[:3], TAGS[:3], trained)[0], abs=1e-5)
    held_out = compute_scores(task, TEXTS[3:], TAGS[3:], WEIGHTS[3:])
    assert history["val_loss"][0] == pytest.approx(held_out[0], abs=1e-5)  # no weights of classes, as in Keras


def test_class_weight_multiplies_the_weights_of_words(task):
    expected = compute_scores(task, TEXTS, TAGS, weights_by_class(TAGS))
    history = fit_one_batch(task, TEXTS, TAGS, class_weight=CLASS_WEIGHT, validation_data=(TEXTS, TAGS))
    assert (history["loss"][0], history["accuracy"][0]) == pytest.approx(expected, abs=1e-5)
    unweighted = compute_scores(task, TEXTS, TAGS, [[1.0] * len(tags) for tags in TAGS])
    assert history["val_loss"][0] == pytest.approx(unweighted[0], abs=1e-5)
    text_weights = np.array([2.0, 0.5, 1.0, 3.0, 1.0])
    products = [[weight * b for b in row] for weight, row in zip(text_weights, weights_by_class(TAGS), strict=True)]
    history = fit_one_batch(task, TEXTS, TAGS, class_weight=CLASS_WEIGHT, sample_weight=text_weights)
    assert history["loss"][0] == pytest.approx(compute_scores(task, TEXTS, TAGS, products)[0], abs=1e-5)


def test_class_weight_of_token_features(task):
    features, labels = task.make_batch(task.encode_examples(TEXTS, TAGS), np.arange(5), 11, None)
    expected = fit_one_batch(task, TEXTS, TAGS, class_weight=CLASS_WEIGHT)["loss"]
    assert fit_one_batch(task, features, labels, class_weight=CLASS_WEIGHT)["loss"] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match="needs texts, or arrays of token features, with labels; got a generator"):
        task.fit((batch for batch in [(features, labels)]), class_weight=CLASS_WEIGHT, verbose=0, steps_per_epoch=1)


def test_class_weight_of_words_in_a_table(task):
    import pandas

    table = pandas.DataFrame({"text": TEXTS, "label": TAGS})
    expected = compute_scores(task, TEXTS, TAGS, weights_by_class(TAGS))
    table = from_table(table, label="label")
    assert fit_one_batch(task, *table, class_weight=CLASS_WEIGHT)["loss"][0] == pytest.approx(expected[0], abs=1e-5)


@pytest.mark.tf_only
def test_weights_in_a_dataset(task):
    import tensorflow as tf

    tags = [["O" if tag == -100 else tag for tag in row] for row in TAGS]
    components = (TEXTS, [[LABELS.index(tag) for tag in row] for row in tags], WEIGHTS)
    dataset = tf.data.Dataset.from_tensor_slices((*map(tf.ragged.constant, components),)).ragged_batch(len(TEXTS))
    expected = compute_scores(task, TEXTS, tags, WEIGHTS)
    assert task.evaluate(dataset, verbose=0)[:2] == pytest.approx(expected, abs=1e-5)
    products = multiply(WEIGHTS, weights_by_class(tags))
    losses = fit_one_batch(task, dataset, class_weight=CLASS_WEIGHT)["loss"]
    assert losses[0] == pytest.approx(compute_scores(task, TEXTS, tags, products)[0], abs=1e-5)


def test_resumable_runs_take_class_weights(task, tmp_path):
    checkpoint = lmzoo.training.ResumableCheckpoint(tmp_path / "run")
    task.fit(TEXTS, TAGS, class_weight=CLASS_WEIGHT, callbacks=[checkpoint], verbose=0)


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([[1.0] * 3, [1.0] * 2], ValueError, r"`sample_weight\[0\]` holds 3 weights for 4 words"),
        ([[1.0] * 4, 1.0], TypeError, r"`sample_weight\[1\]` must be a list of the weights of 2 words, got 1.0"),
        ([[1.0] * 4], ValueError, "Got 2 texts but 1 weights"),
        ([[1.0] * 4, [1.0, np.nan]], ValueError, "Text 1: `sample_weight` is nan at position 1"),
        ([[1.0] * 4, [1.0, -1.0]], ValueError, "Text 1: `sample_weight` is -1.0 at position 1"),
        ([["1"] * 4, [1.0, 1.0]], TypeError, "Text 0: `sample_weight` must be numbers"),
        (np.ones((2, 3)), ValueError, r"`sample_weight\[0\]` holds 3 weights for 4 words"),
        (np.ones((2, 4, 1)), ValueError, r"weights of its words, got weights of shape \(2, 4, 1\)"),
    ],
)
def test_errors_of_weights_of_words(task, steps, weights, error, message):
    for method in (task.fit, task.evaluate):
        with pytest.raises(error, match=message):
            method(TEXTS[:2], TAGS[:2], sample_weight=weights, callbacks=[steps], verbose=0)
    assert steps.count == 0


def test_weights_of_words_and_classes_are_refused_with_crf(tiny, steps):
    task = TokenClassifier(tiny.backbone(), tiny.preprocessor(), labels=LABELS, crf=True)
    texts, tags = TEXTS[:2], [["B-PER", "O", "O", "B-LOC"], ["O", "B-LOC"]]
    with pytest.raises(ValueError, match=r"Words have no weights with `crf`, .* pass a weight for each text"):
        task.fit(texts, tags, sample_weight=WEIGHTS[:2], callbacks=[steps], verbose=0)
    with pytest.raises(ValueError, match="Classes have no weights with `crf`"):
        task.fit(texts, tags, class_weight=CLASS_WEIGHT, callbacks=[steps], verbose=0)
    assert steps.count == 0
