"""Calls, `predict_on_batch`, `train_on_batch` and `test_on_batch` on texts."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.models import MaskedLM, MultipleChoice, QuestionAnswerer, Seq2SeqLM, TextClassifier, TokenClassifier
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_examples, tiny_preprocessor, tiny_task
from lmzoo.training import AdamW

TASKS = (MaskedLM, MultipleChoice, QuestionAnswerer, TextClassifier, TokenClassifier)


@pytest.fixture(scope="module", params=TASKS, ids=lambda cls: cls.__name__)
def task(request):
    task = tiny_task(request.param, families()["bert"])
    task.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    return task


@pytest.mark.quick_cases("MultipleChoice", "QuestionAnswerer")
def test_calls_on_texts_give_the_outputs_of_predict(task):
    x, _ = tiny_examples(task)
    expected = task.predict(x, verbose=0)
    for outputs in (task(x), task.predict_on_batch(x)):
        for actual, desired in zip(keras.tree.flatten(outputs), keras.tree.flatten(expected), strict=True):
            common = tuple(slice(min(sizes)) for sizes in zip(actual.shape, desired.shape, strict=True))
            real = desired[common] != 0  # `predict` has zeros beyond the width of a batch
            np.testing.assert_allclose(np.asarray(actual)[common][real], desired[common][real], atol=1e-5)


@pytest.mark.quick_cases("MaskedLM")
def test_steps_on_texts_lower_the_loss_of_evaluate(task):
    x, y = tiny_examples(task)
    losses = [task.train_on_batch(x, y, return_dict=True)["loss"] for _ in range(3)]
    loss = task.test_on_batch(x, y, return_dict=True)["loss"]
    if not isinstance(task, MaskedLM):  # it masks other tokens in each step
        assert losses[-1] < losses[0]
        task.reset_metrics()
        expected = task.evaluate(x, y, batch_size=7, verbose=0, return_dict=True)["loss"]
        np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_single_batches_after_fit_are_trained_at_a_constant_rate(tiny, weights_of):
    texts, labels = tiny.data(7)
    task = tiny.classifier()
    task.fit(texts, labels, batch_size=7, epochs=3, verbose=0)
    for _ in range(2):
        weights = weights_of(task)
        task.train_on_batch(texts, labels)
        assert max(np.abs(a - b).max() for a, b in zip(weights_of(task), weights, strict=True)) > 1e-5
    assert task.optimizer.schedule_steps == (0, 0, 2)
    task.optimizer.start_schedule(3, 5)
    task.train_on_batch(texts, labels)
    assert task.optimizer.schedule_steps == (3, 5, 1)


@pytest.mark.parametrize("schedule", ["constant", "inverse_square_root", "slanted_triangular"])
def test_schedules_that_do_not_end_at_zero_continue_in_single_batches(tiny, schedule):
    texts, labels = tiny.data(7)
    task = tiny.classifier()
    task.compile(AdamW(1e-3, schedule=schedule))
    task.fit(texts, labels, batch_size=7, epochs=3, verbose=0)
    warmup_steps, total_steps, elapsed = task.optimizer.schedule_steps
    task.train_on_batch(texts, labels)
    assert task.optimizer.schedule_steps == (warmup_steps, total_steps, elapsed + 1)


def test_single_batches_take_weights_of_texts_and_classes():
    task = tiny_task(TextClassifier, families()["bert"])
    task.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    x, y = tiny_examples(task)
    weights = np.where(y == 2, 3.0, 1.0)
    named = [task.labels[label] for label in y]
    expected = task.test_on_batch(x, named, weights, return_dict=True)["loss"]
    task.reset_metrics()
    loss = task.train_on_batch(x, y, class_weight={task.labels[2]: 3.0}, return_dict=True)["loss"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    with pytest.raises(ValueError, match=r"Label 3 at position 2 is outside \[0, 3\)"):
        task.train_on_batch(x, [0, 1, 3, 0, 0, 0, 0])


def test_single_batches_take_weights_of_words_classes():
    task = tiny_task(TokenClassifier, families()["bert"])
    task.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    x, y = tiny_examples(task)
    class_weight = {task.labels[1]: 3.0}
    expected = task.fit(x, y, batch_size=7, class_weight=class_weight, verbose=0).history["loss"][0]
    features, labels, *_ = task.training_batches(x, y, batch_size=7)[0]
    for inputs, targets in ((x, y), (features, labels)):
        task.reset_metrics()
        loss = task.train_on_batch(inputs, targets, class_weight=class_weight, return_dict=True)["loss"]
        np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_single_batches_check_the_labels_of_token_features():
    task = tiny_task(TextClassifier, families()["bert"])
    task.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    x, y = tiny_examples(task)
    features = task.preprocessor(x)
    named = [task.labels[label] for label in y]
    for step in (task.test_on_batch, task.train_on_batch):
        with pytest.raises(ValueError, match=r"Label 3 at position 2 is outside \[0, 3\)"):
            step(features, [0, 1, 3, 0, 0, 0, 0])
        with pytest.raises(ValueError, match=r"`sample_weight` is -1\.0 at position 1"):
            step(features, y, np.array([1.0, -1.0, 1, 1, 1, 1, 1]))
        with pytest.raises(ValueError, match="`token_ids` must be in"):
            step({**features, "token_ids": features["token_ids"] - 1}, y)
    weights = np.where(y == 2, 3.0, 1.0)
    expected = task.test_on_batch(features, named, weights, return_dict=True)
    assert expected["accuracy"] == pytest.approx(
        np.average(task.predict(features, verbose=0).argmax(axis=1) == y, weights=weights)
    )
    weighted = task.train_on_batch(features, named, class_weight={task.labels[2]: 3.0}, return_dict=True)
    assert weighted == pytest.approx(expected, rel=1e-5)


def test_single_batches_take_pairs_of_keras_hub():
    task = tiny_task(Seq2SeqLM, families()["marian"])
    task.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    pair = ["the film", "a"], ["a plot", "good"]
    named = {"encoder_text": pair[0], "decoder_text": pair[1]}
    expected = task.predict_on_batch(pair)
    np.testing.assert_array_equal(task.predict_on_batch(named), expected)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(task(named)), expected, rtol=1e-5, atol=1e-5)
    losses = [task.test_on_batch(x, return_dict=True)["loss"] for x in (pair, named)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_call_without_texts():
    task = tiny_task(TextClassifier, families()["bert"])
    assert task([]).shape == (0, 3)


def test_symbolic_strings_are_refused():
    task = tiny_task(TextClassifier, families()["bert"])
    with pytest.raises(TypeError, match=r"takes no symbolic strings\. Build on its token features, `task\.input`"):
        task(keras.Input((), dtype="string"))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        texts = tf.constant(["a film"])
        assert task(texts).shape == (1, 3)
        for call in (task, lambda x: task((x, x))):
            with pytest.raises(TypeError, match=r"takes no symbolic strings"):
                tf.function(call)(texts)


@pytest.mark.slow
def test_segment_ids_are_dropped_for_a_model_without_segments():
    """Keras would take segment ids, which the preprocessor makes, for the tokens."""
    family = families()["bert"]
    backbone = tiny_backbone(family, num_segments=1)
    task = TextClassifier(backbone, tiny_preprocessor(family), num_classes=3)
    x, y = tiny_examples(task)
    features = task.preprocessor(x)
    assert "segment_ids" in features
    model_inputs = {name: features[name] for name in backbone.input}
    expected = task.predict(model_inputs, verbose=0)
    for logits in (task(x), task(features), task.predict(features, verbose=0), task.predict(x, verbose=0)):
        np.testing.assert_allclose(logits, expected, atol=1e-6)
    losses = [task.evaluate(data, y, verbose=0, return_dict=True)["loss"] for data in (model_inputs, features, x)]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
