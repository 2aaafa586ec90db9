"""A small text, tiny models, and a comparison of weights."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.pretraining import language_model, recipe, run

LINES = ["The ship left the harbour at dawn.", "Nobody had seen the island.", "The sea grew rough.", "It was calm."]
TINY = {"tokens": 600, "vocabulary_size": 61, "sequence_length": 17, "positions": 23, "batch_size": 5}


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setitem(recipe.SIZES, "nano", (1, 64))
    monkeypatch.setitem(language_model.WORD_SIZES, "nano", (7, 5, ((1, 3), (2, 5))))
    monkeypatch.setattr(run, "ROUND", 3)
    path = tmp_path / "tales.txt"
    path.write_text("\n\n".join("\n".join(LINES[i % 4 :] + LINES[: i % 4]) for i in range(103)), "utf-8")
    return path


def assert_same_weights(model, expected):
    for weight, desired in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(weight, desired)
