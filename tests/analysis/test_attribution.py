"""What contributes to an answer."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.analysis import integrated_gradients, leave_out
from lmzoo.families.albert import FAMILY as ALBERT
from lmzoo.families.bert import FAMILY
from lmzoo.families.elmo import FAMILY as ELMO
from lmzoo.families.gpt2 import FAMILY as GPT2
from lmzoo.models import TextClassifier, TextEmbedder, TextRegressor
from lmzoo.testing import randomize, tiny_task

PAIRS = [("the film", "was good ."), ("a", "the plot was dull")]


def task_of(kind, family):
    task = tiny_task(kind, family)
    randomize(task)
    return task


@pytest.mark.parametrize("family", [FAMILY, ALBERT, GPT2], ids=lambda family: family.name)
def test_contributions_add_up(family):
    """To one per cent of the difference, and closer with more steps."""
    task = task_of(TextClassifier, family)
    logits = task.predict(PAIRS, verbose=0)
    for found, row in zip(integrated_gradients(task, PAIRS, steps=64), logits, strict=True):
        assert found.target == task.class_names[row.argmax()]
        assert found.score == pytest.approx(row.max(), abs=1e-5)
        assert found.values.sum() == pytest.approx(found.score - found.baseline, rel=0.01, abs=1e-4)
        assert found.values.shape == (len(found.tokens),)
    (one, _) = integrated_gradients(task, PAIRS, target=2)
    assert (one.target, one.score) == (task.class_names[2], pytest.approx(logits[0, 2], abs=1e-5))


def test_a_linear_model_is_explained_exactly(monkeypatch):
    """By its weights times the difference of the embeddings."""
    task = task_of(TextRegressor, FAMILY)
    (found,) = integrated_gradients(task, ["the film was good"], steps=1)
    (again,) = integrated_gradients(task, ["the film was good"], steps=96)
    assert found.target == "score"
    assert abs(again.values.sum() - (again.score - again.baseline)) < 1e-4
    assert np.abs(found.values - again.values).max() > 1e-6  # it is not linear
    special = again.segments < 0
    assert np.abs(again.values[special]).max() < 1e-6  # they are the same in the baseline
    assert np.abs(again.values[~special]).min() > 1e-6


def test_words_are_left_out():
    task = task_of(TextClassifier, FAMILY)
    (first, second) = leave_out(task, PAIRS, target="B-PER")
    assert first.tokens == ["the", "film", "was", "good", "."]
    assert first.segments.tolist() == [0, 0, 1, 1, 1]
    assert [first.texts[s][b:e] for s, (b, e) in zip(first.segments, first.offsets, strict=True)] == first.tokens
    whole = task.predict([PAIRS[0]], verbose=0)[0, 1]
    without = task.predict([("the film", "was  .")], verbose=0)[0, 1]
    assert first.values[3] == pytest.approx(whole - without, abs=1e-5)
    assert first.baseline is None
    assert len(second.tokens) == 5
    (found,) = leave_out(task_of(TextRegressor, ELMO), ["a film"])
    assert found.tokens == ["a", "film"]
    (empty,) = leave_out(task, [""])
    assert empty.values.shape == (0,)


def test_errors():
    task = tiny_task(TextClassifier, FAMILY)
    for function in (integrated_gradients, leave_out):
        with pytest.raises(TypeError, match="of a TextClassifier or a TextRegressor"):
            function(tiny_task(TextEmbedder, FAMILY), ["a"])
        with pytest.raises(
            ValueError, match="`target` must be one of the classes O, B-PER, I-PER, or its number, got 'good'"
        ):
            function(task, ["a"], target="good")
        with pytest.raises(ValueError, match="text"):
            function(task, [])
    with pytest.raises(ValueError, match="`target` must be None for a TextRegressor"):
        leave_out(tiny_task(TextRegressor, FAMILY), ["a"], target=0)
    with pytest.raises(ValueError, match="ElmoBackbone has no embeddings of tokens to fade in: use `leave_out`"):
        integrated_gradients(tiny_task(TextClassifier, ELMO), ["a"])
