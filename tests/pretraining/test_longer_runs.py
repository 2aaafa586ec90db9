"""Runs with the schedule "wsd" that are continued for longer, states at URLs, and weights that do not decay."""

from __future__ import annotations

import shutil

import keras
import numpy as np
import pytest

import lmzoo
from lmzoo.pretraining import Recipe, encoders, pretrain
from lmzoo.registry.family import families
from lmzoo.tasks import BidirectionalLM, CausalLM, Pretrainer, Seq2SeqLM, TextClassifier
from lmzoo.testing import tiny_task
from lmzoo.training import LAMB, AdamW
from tests.pretraining.conftest import TINY, assert_same_weights
from tests.tasks.interruptions import Interrupted, Spy

pytestmark = pytest.mark.usefixtures("eager")


class Rates(keras.callbacks.Callback):
    """Records the learning rate after each step."""

    def __init__(self):
        super().__init__()
        self.rates = {}

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer
        self.rates[int(optimizer.iterations)] = float(optimizer.learning_rate)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "stop", "first"),
    [("nsp", 99, 6), ("none", 7, 7), ("none", 5, 4)],
    ids=["finished", "interrupted in its decay", "interrupted before"],
)
def test_a_longer_run_continues_before_the_decay(text, tmp_path, monkeypatch, objective, stop, first):
    """The weights equal those of a run that was as long from the start."""
    monkeypatch.setattr(encoders, "WSD_WARMUP", 3)
    settings = {**TINY, "positions": 17, "objective": objective, "schedule": "wsd", "learning_rate": 0.01}
    short, long = (Recipe(**{**settings, "tokens": tokens}) for tokens in (600, 1100))
    whole, continued = Rates(), Rates()
    pretrain(text, tmp_path / "whole", long, callbacks=[whole], verbose=False, weights_dtype="float32")
    shutil.copytree(tmp_path / "whole.work/tokenizer", tmp_path / "continued.work/tokenizer")
    try:
        pretrain(text, tmp_path / "continued", short, callbacks=[Spy(stop)], verbose=False)
    except Interrupted:
        assert stop < 99
    with pytest.raises(ValueError, match="another `seed`"):
        pretrain(text, tmp_path / "continued", Recipe(**{**vars(long), "seed": 1}), overwrite=True, verbose=False)
    exact = {"overwrite": True, "weights_dtype": "float32"}
    pretrain(text, tmp_path / "continued", long, callbacks=[continued], verbose=False, **exact)
    steps = max(whole.rates)
    begin = steps - -(-steps // 5)
    assert min(continued.rates) == first < begin
    assert continued.rates == {step: rate for step, rate in whole.rates.items() if step >= first}
    assert [whole.rates[step] for step in (1, 2)] == pytest.approx([0.01 / 3, 0.02 / 3])
    assert {whole.rates[step] for step in range(3, begin + 1)} == {np.float32(0.01)}
    assert whole.rates[begin + 1] < 0.008
    assert whole.rates[steps] == 0.0
    models = [lmzoo.models.Pretrainer.from_preset(tmp_path / name) for name in ("whole", "continued")]
    assert_same_weights(*models)
    with pytest.raises(ValueError, match="another `tokens`"):  # the model has seen more already
        pretrain(text, tmp_path / "continued", short, overwrite=True, verbose=False)


def test_too_few_steps_for_the_schedule_are_refused(text, tmp_path):
    with pytest.raises(ValueError, match=r"rises for 500 steps .*: \d+ steps are too few\. Pass more `tokens`"):
        pretrain(text, tmp_path / "model", Recipe(**TINY, schedule="wsd"), verbose=False)


@pytest.mark.parametrize(("name", "kind"), [("bert", LAMB), *((name, AdamW) for name in families())])
def test_biases_and_norms_do_not_decay(name, kind):
    """With gradients of 0, only matrices decay, except biases of heads and positions."""
    family = families()[name]
    task_classes = (Pretrainer, BidirectionalLM, CausalLM, Seq2SeqLM, TextClassifier)
    task_class = next(task for task in task_classes if task.supports(family))
    model = tiny_task(task_class, family)
    for variable in model.trainable_variables:
        variable.assign(keras.ops.ones_like(variable.value))
    optimizer = kind(0.1, weight_decay=0.5)
    optimizer.build(model.trainable_variables)
    optimizer.apply([keras.ops.zeros_like(variable.value) for variable in model.trainable_variables])
    for variable in model.trainable_variables:
        decays = len(variable.shape) > 1 and "_bias" not in variable.path
        assert (float(keras.ops.min(variable.value)) < 1) == decays, variable.path


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["linear", "wsd"])
def test_states_at_a_url_continue_on_another_machine(text, tmp_path, monkeypatch, schedule):
    """The vocabulary is stored beside the states."""
    monkeypatch.setattr(encoders, "WSD_WARMUP", 3)
    recipe, states = Recipe(**TINY, schedule=schedule), (tmp_path / "states").as_uri()
    exact = {"verbose": False, "weights_dtype": "float32", "states": states}
    whole, continued = Rates(), Rates()
    pretrain(text, tmp_path / "whole", recipe, callbacks=[whole], **exact)
    steps = max(whole.rates)
    shutil.copytree(tmp_path / "states" / "tokenizer", tmp_path / "kept" / "tokenizer")
    shutil.rmtree(tmp_path / "states")
    (tmp_path / "kept").rename(tmp_path / "states")
    with pytest.raises(Interrupted):
        pretrain(text, tmp_path / "model", recipe, callbacks=[Spy(steps - 1)], **exact)
    assert not list((tmp_path / "model.work").glob("states*"))
    shutil.rmtree(tmp_path / "model.work")
    pretrain(text, tmp_path / "model", recipe, callbacks=[continued], **exact)
    assert 1 < min(continued.rates) < steps
    model, expected = (lmzoo.models.Pretrainer.from_preset(tmp_path / name) for name in ("model", "whole"))
    assert_same_weights(model, expected)
