"""Compiled functions and optimizers of tasks after changes of weights, settings and backends."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.models import CausalLM, TextClassifier
from lmzoo.registry.family import families
from lmzoo.tasks.generation import get_generator
from lmzoo.testing import randomize, tiny_task, tiny_texts
from lmzoo.training import AdamW, optimizers
from tests.reference.weights import to_numpy

LABELS = ["O", "B-PER", "I-PER"]
TEXTS = tiny_texts(7)
Y = [LABELS[i % 3] for i in range(7)]
pytestmark = pytest.mark.usefixtures("no_garbage_collection")
# Keras warns about each layer without an int8 form.
quantizes = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method implemented:UserWarning")


def make():
    """Return a classifier whose functions are compiled quickly: its backbone is a table."""
    return tiny_task(TextClassifier, families()["static_words"])


class SquaredLoss(keras.losses.Loss):
    """Loss that is not registered with Keras."""

    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_pred - keras.ops.cast(y_true, y_pred.dtype)[:, None]), axis=1)


def largest_logit(y_true, y_pred):
    """Return each row's largest logit, a metric that is not registered with Keras."""
    return keras.ops.max(y_pred, axis=1)


@quantizes
def test_predictions_follow_a_quantized_backbone():
    """TensorFlow's functions hold the variables for which they were traced."""
    task = make()
    randomize(task)
    before = task.predict_on_batch(TEXTS)
    task.test_on_batch(TEXTS, Y)
    task.backbone.quantize("int8")
    expected = to_numpy(task(TEXTS))
    assert np.abs(expected - before).max() > 2e-5
    np.testing.assert_allclose(task.predict_on_batch(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(task.predict(TEXTS, verbose=0), expected, atol=1e-6)
    loss = task.test_on_batch(TEXTS, Y, return_dict=True)["loss"]
    log_probabilities = expected - np.log(np.exp(expected).sum(axis=1, keepdims=True))
    desired = -np.mean([log_probabilities[i, i % 3] for i in range(7)])
    np.testing.assert_allclose(loss, desired, rtol=1e-5)


def test_loops_that_generate_text_follow_the_weights():
    task = tiny_task(CausalLM, families()["gpt2"])
    generator = get_generator(task, 29, task.compiled_parts)
    assert get_generator(task, 29, task.compiled_parts) is generator
    task.backbone.enable_lora(2)
    assert get_generator(task, 29, task.compiled_parts) is not generator


@pytest.mark.slow
@quantizes
def test_generated_texts_and_scores_follow_a_quantized_backbone():
    task = tiny_task(CausalLM, families()["gpt2"])
    before = task.score(TEXTS)
    task.generate(TEXTS)
    task.backbone.quantize("int8")
    expected = CausalLM(task.backbone, task.preprocessor, max_new_tokens=task.max_new_tokens)
    assert task.score(TEXTS) == expected.score(TEXTS) != before
    assert task.generate(TEXTS) == expected.generate(TEXTS)


@quantizes
def test_a_quantized_task_keeps_its_own_loss_and_metrics():
    task = make()
    loss = SquaredLoss()
    optimizer = keras.optimizers.Adam(0.25)
    task.compile(optimizer, loss, metrics=[largest_logit], run_eagerly=True)
    task.quantize("int8")
    assert task.loss is loss
    assert task.run_eagerly
    assert task.optimizer is not optimizer
    assert isinstance(task.optimizer, keras.optimizers.Adam)
    assert float(task.optimizer.learning_rate) == 0.25
    scores = task.evaluate(TEXTS, Y, verbose=0, return_dict=True)
    logits = to_numpy(task(TEXTS))
    np.testing.assert_allclose(scores["loss"], np.square(logits - np.arange(7)[:, None] % 3).mean(), rtol=1e-5)
    np.testing.assert_allclose(scores["largest_logit"], logits.max(axis=1).mean(), rtol=1e-5)


@quantizes
def test_a_task_that_is_not_compiled_is_quantized():
    task = TextClassifier.from_config(TextClassifier(make().backbone, num_classes=3).get_config())
    task.quantize("int8")
    assert not task.compiled
    assert "int8" in {weight.dtype for weight in task.backbone.weights}


@pytest.mark.parametrize("jit_compile", [None, True, False])
def test_settings_hold_jit_compile_as_it_was_passed(jit_compile):
    """A file may be loaded with another backend, or on another machine."""
    task = TextClassifier(make().backbone, num_classes=3)
    if jit_compile is not None:
        task.compile(jit_compile=jit_compile)
    expected = "auto" if jit_compile is None else jit_compile
    assert task.get_compile_config()["jit_compile"] == expected
    loaded = TextClassifier.from_config(task.get_config())
    loaded.compile_from_config(task.get_compile_config())
    assert loaded.jit_compile == task.jit_compile
    assert loaded.get_compile_config()["jit_compile"] == expected


def test_tasks_without_an_optimizer_are_saved(tmp_path):
    task = make()
    task.compile(optimizer=None, run_eagerly=True)
    task.save(tmp_path / "task.keras")
    loaded = TextClassifier.load(tmp_path / "task.keras")
    assert loaded.optimizer is None
    assert loaded.evaluate(TEXTS, Y, verbose=0) == pytest.approx(task.evaluate(TEXTS, Y, verbose=0))


@pytest.mark.tf_only
def test_a_compiled_update_has_the_settings_of_the_last_compile(monkeypatch):
    monkeypatch.setattr(optimizers, "_MIN_WEIGHTS_TO_COMPILE", 0)
    task = make()
    optimizer = AdamW(0.1)
    task.compile(optimizer)
    before = [to_numpy(v) for v in task.trainable_variables]
    task.train_on_batch(TEXTS, Y)
    trained = [to_numpy(v) for v in task.trainable_variables]
    assert not np.array_equal(before[-1], trained[-1])
    optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.0, 5, 0.5)
    task.compile(optimizer)
    task.train_on_batch(TEXTS, Y)
    for variable, expected in zip(task.trainable_variables, trained, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), expected)


@pytest.mark.tf_only
def test_each_task_sets_its_use_of_xla_on_a_common_backbone():
    """XLA cannot compile the search for equal words."""
    first = tiny_task(TextClassifier, families()["elmo"])
    first.compile(jit_compile=True)
    second = TextClassifier(first.backbone, first.preprocessor, labels=LABELS)
    second.compile(jit_compile=False)
    encoder = first.backbone.bilm.encoder
    assert encoder.dedupe  # by the second task
    for make_function in (first.make_predict_function, first.make_test_function, first.make_train_function):
        make_function()
        assert not encoder.dedupe
        second.make_predict_function()
        assert encoder.dedupe
