"""Keras' own callbacks in `fit` on texts."""

from __future__ import annotations

import importlib.util
import itertools

import keras
import numpy as np
import pytest


@pytest.fixture(scope="module")
def task(tiny):
    """Return a task for callbacks that do not depend on its weights."""
    return tiny.classifier()


@pytest.fixture
def fit(tiny, task):
    texts, labels = tiny.data()

    def run(*callbacks, epochs=4, model=task):
        arguments = {"batch_size": 8, "epochs": epochs, "validation_data": (texts[:8], labels[:8]), "verbose": 0}
        return model.fit(texts, labels, callbacks=list(callbacks), **arguments)

    return run


@pytest.mark.slow
def test_reduce_lr_on_plateau_lowers_the_rate(task, fit):
    rate = float(task.optimizer.learning_rate)
    history = fit(keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_delta=100.0))
    np.testing.assert_allclose(history.history["learning_rate"], [rate, rate, rate / 2, rate / 4], rtol=1e-5)
    task.optimizer.learning_rate = rate


def largest_change(before, after):
    """Return the largest absolute difference between two lists of arrays."""
    return max(np.abs(a - b).max() for a, b in zip(before, after, strict=True))


@pytest.mark.slow
def test_learning_rate_scheduler_sets_the_rate(task, fit, weights_of):
    rates = [0.0, 0.0, 3e-4, 1e-4]
    weights = []
    recorder = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: weights.append(weights_of(task)))
    rate = float(task.optimizer.learning_rate)
    history = fit(keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch]), recorder)
    np.testing.assert_allclose(history.history["learning_rate"], rates, rtol=1e-5)
    task.optimizer.learning_rate = rate
    changes = [largest_change(*pair) for pair in itertools.pairwise(weights)]
    assert changes[:2] == [0, 0]
    assert changes[2] > 0


@pytest.mark.slow
def test_model_checkpoint_saves_tasks_and_weights(tiny, task, fit, tmp_path):
    texts = tiny.texts()
    path = tmp_path / "best.keras"
    fit(
        keras.callbacks.ModelCheckpoint(path, monitor="val_loss", save_best_only=True),
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True),
        epochs=2,
    )
    assert {file.name for file in tmp_path.iterdir()} == {"best.keras", "1.weights.h5", "2.weights.h5"}
    loss = keras.saving.load_model(path).evaluate(texts[:8], tiny.labels(texts[:8]), verbose=0)[0]
    np.testing.assert_allclose(loss, min(task.history.history["val_loss"]), rtol=1e-4)
    expected = task.predict(texts, verbose=0)
    task.load_weights(tmp_path / "1.weights.h5")
    assert np.abs(task.predict(texts, verbose=0) - expected).max() > 0
    task.load_weights(tmp_path / "2.weights.h5")
    np.testing.assert_array_equal(task.predict(texts, verbose=0), expected)


@pytest.mark.slow
def test_early_stopping_restores_the_best_weights(task, fit, weights_of):
    weights = []
    recorder = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: weights.append(weights_of(task)))
    stop = keras.callbacks.EarlyStopping("val_loss", min_delta=100.0, patience=1, restore_best_weights=True)
    history = fit(stop, recorder)
    assert len(history.epoch) == 2
    for restored, best in zip(weights_of(task), weights[0], strict=True):
        np.testing.assert_array_equal(restored, best)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="TensorBoard is not installed")
def test_tensorboard_writes_logs_of_training_and_validation(fit, tmp_path):
    fit(keras.callbacks.TensorBoard(tmp_path, histogram_freq=1), epochs=1)
    assert list((tmp_path / "train").iterdir())
    assert list((tmp_path / "validation").iterdir())


@pytest.mark.slow
def test_backup_and_restore_resumes_at_the_interrupted_epoch(tiny, tmp_path, weights_of):
    texts, labels = tiny.data()

    def fail(epoch, logs):
        if epoch == 1:
            raise InterruptedError

    def run(*callbacks):
        model = tiny.classifier()
        model.fit(texts, labels, batch_size=8, epochs=3, callbacks=list(callbacks), verbose=0)
        return model

    backup = lambda: keras.callbacks.BackupAndRestore(tmp_path / "backup")  # noqa: E731
    with pytest.raises(InterruptedError):
        run(backup(), keras.callbacks.LambdaCallback(on_epoch_begin=fail))
    epochs = []
    resumed = run(backup(), keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epochs.append(epoch)))
    assert epochs == [1, 2]
    for a, b in zip(weights_of(resumed), weights_of(run()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_epochs_that_are_added_to_a_restored_backup_are_trained(tiny, tmp_path, weights_of):
    texts, labels = tiny.data(7)
    weights = []
    recorder = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: weights.append(weights_of(task)))
    for epochs in (1, 3):
        task = tiny.classifier()
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        task.fit(texts, labels, batch_size=7, epochs=epochs, callbacks=[backup, recorder], verbose=0)
    assert len(weights) == 3
    changes = [largest_change(*pair) for pair in itertools.pairwise(weights)]
    assert min(changes) > 1e-5
    _, total_steps, elapsed = task.optimizer.schedule_steps
    assert elapsed == total_steps > 0


def test_a_backup_that_lacks_the_position_in_the_data_causes_a_warning(tiny, task, tmp_path):
    texts, labels = tiny.data(7)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    message = "not the position in the data: .* Pass `lmzoo.training.ResumableCheckpoint` instead"
    with pytest.warns(UserWarning, match=message) as caught:
        task.fit(texts, labels, batch_size=5, steps_per_epoch=1, callbacks=[backup], verbose=0)
    assert [warning.filename for warning in caught if "position" in str(warning.message)] == [__file__]
