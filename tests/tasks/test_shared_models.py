"""Tasks that several threads share, and tasks after an error or an interruption."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.compiled  # a compiled step reuses the memory of the weights


class Interruption(keras.callbacks.Callback):
    """Callback that raises KeyboardInterrupt after `batch`."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_predict_batch_end(self, batch, logs=None):
        if batch == self.batch:
            raise KeyboardInterrupt

    on_test_batch_end = on_train_batch_end = on_predict_batch_end


def fail(*_):
    raise RuntimeError


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 1])
def test_a_task_predicts_after_an_interruption(tiny, batch):
    (texts, labels), task = tiny.data(7), tiny.classifier()
    expected = task.predict(texts, verbose=0)
    arguments = {"batch_size": 3, "verbose": 0, "callbacks": [Interruption(batch)]}
    for run in (lambda: task.predict(texts, **arguments), lambda: task.evaluate(texts, labels, **arguments)):
        with pytest.raises(KeyboardInterrupt):
            run()
        np.testing.assert_array_equal(task.predict(texts, verbose=0), expected)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["predict_step", "train_step", "make_batch"])
def test_a_task_predicts_and_trains_after_an_error(tiny, monkeypatch, method):
    (texts, labels), task = tiny.data(7), tiny.classifier()
    expected = task.predict(texts, verbose=0)
    with monkeypatch.context() as patch:
        patch.setattr(task, method, fail)
        if method != "make_batch":  # the compiled functions call the step
            task.predict_function = task.train_function = None
        with pytest.raises(RuntimeError):
            task.predict(texts, verbose=0) if method == "predict_step" else task.fit(texts, labels, verbose=0)
    if method != "make_batch":
        task.predict_function = task.train_function = None
    np.testing.assert_array_equal(task.predict(texts, verbose=0), expected)
    assert np.isfinite(task.fit(texts, labels, verbose=0).history["loss"]).all()


@pytest.mark.slow
def test_an_interrupted_fit_keeps_its_progress(tiny):
    (texts, labels), task = tiny.data(7), tiny.classifier(rate=0.05)
    before = task.predict(texts, verbose=0)
    with pytest.raises(KeyboardInterrupt):
        task.fit(texts, labels, batch_size=3, verbose=0, callbacks=[Interruption(1)])
    assert np.abs(task.predict(texts, verbose=0) - before).max() > 1e-3


def test_threads_share_a_new_task(tiny):
    (texts, _), task = tiny.data(5), tiny.classifier()
    with ThreadPoolExecutor(4) as pool:
        predictions = list(pool.map(lambda _: task.predict(texts, verbose=0), range(8)))
    expected = task.predict(texts, verbose=0)
    for logits in predictions:
        np.testing.assert_array_equal(logits, expected)
