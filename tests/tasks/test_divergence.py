"""Diverging training stops, and diverged models warn when saved or loaded, and are not exported."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import lmzoo
from lmzoo.errors import NotFiniteError
from lmzoo.models import Backbone, TextClassifier
from lmzoo.training import ResumableCheckpoint


class StepCounter(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.steps, self.ended = 0, False

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1

    def on_train_end(self, logs=None):
        self.ended = True


def make_diverging_task(tiny, step=6):
    """Return a classifier whose learning rate explodes in step `step - 1`, so that the loss of `step` is NaN."""
    task = tiny.classifier()
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([step - 3], [0.0, 1e30])
    task.compile(keras.optimizers.SGD(rate))
    return task


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("has_callback", [True, False])
def test_fit_stops_at_the_step_whose_loss_is_not_finite(tiny, has_callback):
    texts, labels = tiny.data(16)
    counter = StepCounter()
    callbacks = [counter] if has_callback else []
    with pytest.raises(NotFiniteError, match=r"the loss is nan in step 2 of epoch 2\. .*a lower learning rate"):
        make_diverging_task(tiny).fit(texts, labels, batch_size=4, epochs=3, callbacks=callbacks, verbose=0)
    assert counter.steps == (5 if has_callback else 0)  # callbacks do not see the sixth
    assert not counter.ended


@pytest.mark.slow
def test_keras_own_callback_stops_without_an_error(tiny):
    texts, labels = tiny.data(16)
    counter, task = StepCounter(), make_diverging_task(tiny)
    stop = keras.callbacks.TerminateOnNaN()
    history = task.fit(texts, labels, batch_size=4, epochs=3, callbacks=[stop, counter], verbose=0)
    assert counter.ended
    assert counter.steps == 6
    assert np.isnan(history.history["loss"][-1])


class WeightSpoiler(keras.callbacks.Callback):
    """Callback that sets a weight to NaN after `step`, like an update whose loss was still finite."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self.step:
            spoil(self.model.head.weights[0])


@pytest.mark.quick_cases("6")
@pytest.mark.parametrize("step", [4, pytest.param(6, marks=pytest.mark.slow)])  # the last of an epoch, and within
def test_a_state_with_nan_is_not_saved(tiny, tmp_path, step):
    texts, labels = tiny.data(16)

    def fit(*callbacks):
        checkpoint, task = ResumableCheckpoint(tmp_path, every=1), tiny.classifier(rate=1e-3)
        task.fit(texts, labels, batch_size=4, epochs=3, callbacks=[*callbacks, checkpoint], verbose=0)

    with pytest.raises(
        NotFiniteError, match=r"Training diverged: '.*' is NaN or infinite in .* The state is not saved"
    ):
        fit(WeightSpoiler(step))
    assert max(path.name for path in tmp_path.iterdir()) == f"step-{step - 1:012d}"
    fit()  # goes on from there
    assert max(path.name for path in tmp_path.iterdir()) == "step-000000000012"


def spoil(weight, count=2):
    values = np.array(keras.ops.convert_to_numpy(weight))
    values.flat[:count] = np.nan
    weight.assign(values)
    return f"{weight.path}' is NaN or infinite in {count} of {values.size} values"


@pytest.fixture(params=["backbone", "head"])
def spoiled(request, tiny):
    """Return a classifier with NaN in one weight, and the message that names it."""
    task = tiny.classifier(labels=["bad", "good"])
    return task, spoil((task.backbone if request.param == "backbone" else task.head).weights[-1])


def call_and_expect_warning(message, call):
    with pytest.warns(UserWarning, match=message) as notices:
        result = call()
    assert sum("NaN or infinite" in str(notice.message) for notice in notices) == 1
    return result


@pytest.mark.slow
def test_saving_and_loading_name_the_weight(spoiled, tmp_path):
    task, message = spoiled
    file, preset, weights = tmp_path / "task.keras", tmp_path / "preset", tmp_path / "task.weights.h5"
    call_and_expect_warning(f"saved: .*{message}", lambda: task.save(file))
    call_and_expect_warning(f"saved: .*{message}", lambda: task.save_to_preset(preset))
    call_and_expect_warning(f"saved: .*{message}", lambda: task.save_weights(weights))
    loaded = call_and_expect_warning(f"loaded: .*{message}", lambda: keras.saving.load_model(file))
    call_and_expect_warning(message, lambda: TextClassifier.from_preset(preset))
    call_and_expect_warning(f"loaded: .*{message}", lambda: task.load_weights(weights))
    assert loaded.classify(["good"])[0]["label"] in ("bad", "good")


def test_other_formats_name_the_tensor(spoiled, tmp_path):
    task, message = spoiled
    numbers = message.partition("'")[2]
    call_and_expect_warning(f"saved: .*{numbers}", lambda: lmzoo.save_checkpoint(task, tmp_path, to="hf"))
    call_and_expect_warning(numbers, lambda: TextClassifier.from_preset(tmp_path))


def test_saving_and_loading_backbones_name_the_weight(tiny, tmp_path):
    backbone = tiny.backbone()
    message = spoil(backbone.weights[3])
    call_and_expect_warning(message, lambda: backbone.save(tmp_path / "backbone.keras"))
    call_and_expect_warning(message, lambda: backbone.save_to_preset(tmp_path / "preset"))
    call_and_expect_warning(message, lambda: keras.saving.load_model(tmp_path / "backbone.keras"))
    call_and_expect_warning(message, lambda: Backbone.from_preset(tmp_path / "preset"))


def test_a_diverged_model_is_not_exported(spoiled, tmp_path):
    task, message = spoiled
    for path in (tmp_path / "1", tmp_path / "task.onnx"):
        with pytest.raises(NotFiniteError, match=f"This TextClassifier cannot be exported: '.*{message}"):
            task.export(path)
        assert not path.exists()
