"""Models that several threads use, and that are used again after an error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.compiled  # a compiled step takes over the memory of the weights


class Interrupted(keras.callbacks.Callback):
    """Ctrl-C after a batch."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_predict_batch_end(self, batch, logs=None):
        if batch == self.batch:
            raise KeyboardInterrupt

    on_test_batch_end = on_predict_batch_end


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 1])
def test_a_model_goes_on_after_an_interruption(tiny, batch):
    (texts, labels), task = tiny.data(7), tiny.classifier()
    expected = task.predict(texts, verbose=0)
    arguments = {"batch_size": 3, "verbose": 0, "callbacks": [Interrupted(batch)]}
    for run in (lambda: task.predict(texts, **arguments), lambda: task.evaluate(texts, labels, **arguments)):
        with pytest.raises(KeyboardInterrupt):
            run()
        np.testing.assert_array_equal(task.predict(texts, verbose=0), expected)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["predict", "train"])
def test_a_model_goes_on_after_an_error_in_its_step(tiny, monkeypatch, step):
    (texts, labels), task = tiny.data(7), tiny.classifier()
    expected = task.predict(texts, verbose=0)

    def fail(*_):
        raise RuntimeError

    with monkeypatch.context() as changed:
        changed.setattr(task, f"{step}_step", fail)
        task.predict_function = task.train_function = None
        with pytest.raises(RuntimeError):
            task.fit(texts, labels, verbose=0) if step == "train" else task.predict(texts, verbose=0)
    task.predict_function = task.train_function = None
    np.testing.assert_array_equal(task.predict(texts, verbose=0), expected)
    assert np.isfinite(task.fit(texts, labels, verbose=0).history["loss"]).all()


@pytest.mark.slow
def test_a_model_is_trained_after_an_error_in_its_first_batch(tiny, monkeypatch):
    (texts, labels), task = tiny.data(7), tiny.classifier()
    expected = task.predict(texts, verbose=0)

    def fail(*_):
        raise RuntimeError

    with monkeypatch.context() as changed:
        changed.setattr(task, "make_batch", fail)
        with pytest.raises(RuntimeError):
            task.fit(texts, labels, verbose=0)
    np.testing.assert_array_equal(task.predict(texts, verbose=0), expected)
    assert np.isfinite(task.fit(texts, labels, verbose=0).history["loss"]).all()


@pytest.mark.slow
def test_an_interrupted_fit_keeps_what_it_has_learnt(tiny):
    (texts, labels), task = tiny.data(7), tiny.classifier(rate=0.05)
    before = task.predict(texts, verbose=0)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        task.fit(texts, labels, batch_size=3, verbose=0, callbacks=[Stop()])
    assert np.abs(task.predict(texts, verbose=0) - before).max() > 1e-3


def test_threads_share_a_model(tiny):
    (texts, _), task = tiny.data(5), tiny.classifier()
    expected = task.predict(texts, verbose=0)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: task.predict(texts, verbose=0), range(8)):
            np.testing.assert_array_equal(found, expected)
