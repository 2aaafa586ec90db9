"""Kinds of heads: registration, presets and conversion of tasks by the kind of their head."""

from __future__ import annotations

import keras
import pytest

import lmzoo
from lmzoo.families.bert import FAMILY
from lmzoo.models import MaskedLM, Pretrainer, Task, TextClassifier, TextRegressor
from lmzoo.presets.source import open_source
from lmzoo.registry.head_kinds import HasHead, find_task_for_head, get_task_class, task_name
from lmzoo.testing import tiny_backbone, tiny_preprocessor, tiny_task


@keras.saving.register_keras_serializable(package="toy")
class Length(Task):
    """Task defined outside the package."""

    head_kind = "length"
    learns_from = "texts alone"

    def __init__(self, backbone, preprocessor=None, labels=None, name="length"):
        self_head = keras.layers.Dense(1, name="length_head")
        outputs = self_head(backbone(backbone.input)["pooled_output"])
        super().__init__(backbone, preprocessor, backbone.input, outputs, None, name)
        self.compile()

    def default_loss(self):
        return "mse"

    def default_metrics(self):
        return []


@keras.saving.register_keras_serializable(package="toy")
class Sentiment(TextClassifier):
    """Subclass with the same kind of head."""


def test_every_task_has_its_own_kind_of_head():
    classes = [getattr(lmzoo.models, name) for name in lmzoo.models.__all__]
    tasks = [cls for cls in classes if issubclass(cls, Task) and cls is not Task]
    assert tasks
    assert [get_task_class(cls.head_kind) for cls in tasks] == tasks
    kinds = {kind for cls in tasks for kind in (cls.head_kind, *cls.other_head_kinds)}
    assert {kind for cls in tasks for kind in cls.reads_heads} <= kinds


def test_two_tasks_cannot_have_the_same_kind_of_head():
    with pytest.raises(ValueError, match="kind 'masked_lm' belong to MaskedLM: give Mine another"):

        class Mine(HasHead):
            head_kind = "masked_lm"

    assert get_task_class("masked_lm") is MaskedLM
    assert get_task_class(Sentiment.head_kind) is TextClassifier


class Nameless(Length):
    """Task without a kind of head."""

    head_kind = ""


def test_presets_need_a_kind_of_head(tmp_path):
    message = "Nameless names none: add a `head_kind` to the class, a word such as 'nameless'"
    with pytest.raises(ValueError, match=message):
        Nameless(tiny_backbone(FAMILY)).save_to_preset(tmp_path / "preset")
    assert not (tmp_path / "preset").exists()
    tiny_task(TextClassifier, FAMILY).save_to_preset(tmp_path / "preset")
    with pytest.raises(ValueError, match=message):
        Nameless.from_preset(tmp_path / "preset")


def test_find_task_for_head():
    assert find_task_for_head("pretraining") is find_task_for_head("masked_lm") is MaskedLM
    assert find_task_for_head("regression") is TextRegressor
    assert (find_task_for_head(None), find_task_for_head("unknown"), task_name("unknown")) == (None, None, "unknown")


def test_a_pretrainer_without_an_objective_has_a_masked_lm_head():
    assert tiny_task(Pretrainer, FAMILY).head_kind == "pretraining"
    assert tiny_task(Pretrainer, FAMILY, objective=None).head_kind == "masked_lm"


def test_presets_of_tasks_from_outside_the_package(tmp_path):
    """They are converted and verified, and another task's warning names the class of the head."""
    task = Length(tiny_backbone(FAMILY), tiny_preprocessor(FAMILY))
    task.save_to_preset(tmp_path / "preset")
    assert open_source(tmp_path / "preset").head == "length"
    lmzoo.convert(tmp_path / "preset", tmp_path / "again")
    assert lmzoo.verify(tmp_path / "again")["head"] == "Length"
    with pytest.warns(UserWarning, match="holds the head of a Length, not of a TextRegressor, so a new one starts"):
        TextRegressor.from_preset(tmp_path / "preset")
    with pytest.raises(ValueError, match="'hf' has no place for the head of a Length"):
        lmzoo.save_checkpoint(task, tmp_path / "hf", to="hf")


@pytest.mark.quick_cases("Sentiment-TextClassifier")
@pytest.mark.parametrize(("saved_class", "loaded_class"), [(TextClassifier, Sentiment), (Sentiment, TextClassifier)])
def test_subclasses_load_each_others_heads(saved_class, loaded_class, tmp_path):
    task = tiny_task(saved_class, FAMILY)
    task.save_to_preset(tmp_path)
    reloaded = loaded_class.from_preset(tmp_path)
    texts = ["a fine film", "never dull ."]
    assert type(reloaded) is loaded_class
    assert reloaded.classify(texts) == task.classify(texts)
