"""Progress of a long training."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.common import progress
from lmzoo.training.throughput import Throughput


@pytest.fixture
def train():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def fit(epochs, **arguments):
        callback = Throughput(tokens=7, steps=10, **arguments)
        x = np.ones((4, 3), "float32")
        return model.fit(x, np.ones((4, 1)), batch_size=2, epochs=epochs, verbose=0, callbacks=[callback]).history

    return fit


def test_each_epoch_has_a_line(train):
    lines = []
    speeds = train(epochs=2, say=lines.append)["tokens_per_second"]
    assert min(speeds) > 0
    assert [line.split(": ")[0] for line in lines] == ["step 2 of 10", "step 4 of 10"]
    assert "loss " in lines[0]
    assert lines[1].endswith("minutes left")
    train(epochs=1, say=lines.append, verbose=False)
    assert len(lines) == 2


def test_a_terminal_has_a_progress_bar(train, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(progress, "_DELAY_SECONDS", -1)
    lines = []
    train(epochs=2, say=lines.append)
    output = capsys.readouterr().err
    assert "4 of 10 steps" in output
    assert "loss " in output
    assert "tokens/s" in output
    train(epochs=2, say=lines.append)  # continues from step 4
    assert "8 of 10 steps" in capsys.readouterr().err
    assert lines == []
