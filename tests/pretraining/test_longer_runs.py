"""Runs with the schedule "wsd", which are made longer; sizes, masking and decay of weights in a recipe."""

from __future__ import annotations

import shutil

import keras
import numpy as np
import pytest

import lmzoo
from lmzoo.pretraining import Recipe, encoders, pretrain
from lmzoo.pretraining.encoders import encoder_backbone
from lmzoo.registry.family import families
from lmzoo.tasks import BidirectionalLM, CausalLM, Pretrainer, Seq2SeqLM, TextClassifier
from lmzoo.testing import tiny_task
from lmzoo.text import Masking
from lmzoo.training import LAMB, AdamW
from tests.pretraining.conftest import TINY, Interrupted, Stop

pytestmark = pytest.mark.usefixtures("eager")


class Rates(keras.callbacks.Callback):
    """Notes the learning rate after each step."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer
        self.found[int(optimizer.iterations)] = float(optimizer.learning_rate)


@pytest.mark.slow_cases("finished")
@pytest.mark.parametrize(
    ("objective", "stop", "first"),
    [
        ("nsp", 99, 6),
        pytest.param("none", 7, 7, marks=pytest.mark.slow),
        pytest.param("none", 5, 4, marks=pytest.mark.slow),
    ],
    ids=["finished", "interrupted in its decay", "interrupted before"],
)
def test_a_run_that_is_made_longer(text, tmp_path, monkeypatch, objective, stop, first):
    """From the state before the decay it continues as if it had been so long from the start, to the same weights."""
    monkeypatch.setattr(encoders, "WSD_WARMUP", 3)
    settings = {**TINY, "positions": 17, "objective": objective, "schedule": "wsd", "learning_rate": 0.01}
    short, long = (Recipe(**{**settings, "tokens": tokens}) for tokens in (600, 1100))
    whole, again = Rates(), Rates()
    pretrain(text, tmp_path / "whole", long, callbacks=[whole], verbose=False, weights_dtype="float32")
    shutil.copytree(tmp_path / "whole.work/tokenizer", tmp_path / "again.work/tokenizer")
    try:
        pretrain(text, tmp_path / "again", short, callbacks=[Stop(stop)], verbose=False)
    except Interrupted:
        assert stop < 99
    with pytest.raises(ValueError, match="another `seed`"):
        pretrain(text, tmp_path / "again", Recipe(**{**vars(long), "seed": 1}), overwrite=True, verbose=False)
    exact = {"overwrite": True, "weights_dtype": "float32"}
    pretrain(text, tmp_path / "again", long, callbacks=[again], verbose=False, **exact)
    steps = max(whole.found)
    begin = steps - -(-steps // 5)
    assert min(again.found) == first < begin
    assert again.found == {step: rate for step, rate in whole.found.items() if step >= first}
    assert [whole.found[step] for step in (1, 2)] == pytest.approx([0.01 / 3, 0.02 / 3])
    assert {whole.found[step] for step in range(3, begin + 1)} == {np.float32(0.01)}
    assert whole.found[begin + 1] < 0.008
    assert whole.found[steps] == 0.0
    models = [lmzoo.models.Pretrainer.from_preset(tmp_path / name) for name in ("whole", "again")]
    for ours, theirs in zip(*(model.weights for model in models), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="another `tokens`"):  # which would have to forget what it has seen
        pretrain(text, tmp_path / "again", short, overwrite=True, verbose=False)


def test_steps_that_are_too_few_for_the_schedule(text, tmp_path):
    with pytest.raises(ValueError, match=r"rises for 500 steps .*: \d+ steps are too few\. Pass more `tokens`"):
        pretrain(text, tmp_path / "it", Recipe(**TINY, schedule="wsd"), verbose=False)
    with pytest.raises(ValueError, match="elmo does not use `schedule`"):
        Recipe("elmo", schedule="wsd")


def test_sizes():
    backbone = encoder_backbone(Recipe(size="2x192", positions=16), 50)
    config = backbone.config
    assert (config.num_layers, config.hidden_dim, config.num_heads, config.intermediate_dim) == (2, 192, 3, 768)
    assert Recipe(size="6x512").learning_rate == Recipe(size="small").learning_rate
    for family, size, message in (
        ("bert", "6x100", "multiple of 64, such as 6x256, got '6x100'"),
        ("bert", "6", 'base, or layers and width such as "6x256", got'),
        ("bert", "0x64", "must be one of nano"),
        ("elmo", "6x256", "must be one of nano, mini, small, medium, base, got '6x256'"),
    ):
        with pytest.raises(ValueError, match=message):
            Recipe(family, size=size)


def test_masking():
    assert Recipe().masking == Masking()
    assert Recipe(mask_probability=0.4, whole_word=True, dynamic=False).masking == Masking(0.4, True, dynamic=False)
    assert Recipe("albert", mask_probability=0.2).masking == Masking(0.2, whole_word=True, ngram=3)
    for value in (0, 1.1, "a", True):
        with pytest.raises(ValueError, match=r"`mask_probability` must be a number in \(0, 1\]"):
            Recipe(mask_probability=value)
    with pytest.raises(ValueError, match="elmo does not use `mask_probability`, `whole_word`"):
        Recipe("elmo", mask_probability=0.2, whole_word=True)


@pytest.mark.parametrize(("name", "kind"), [("bert", LAMB), *((name, AdamW) for name in families())])
def test_biases_and_norms_do_not_decay(name, kind):
    """With gradients of zero, only what decays changes: matrices, but no vectors, nor biases of heads or positions."""
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
def test_states_at_a_url(text, tmp_path, monkeypatch, schedule):
    """A run whose machine is lost continues from them on another one, with the same vocabulary."""
    monkeypatch.setattr(encoders, "WSD_WARMUP", 3)
    recipe, states = Recipe(**TINY, schedule=schedule), (tmp_path / "states").as_uri()
    exact = {"verbose": False, "weights_dtype": "float32", "states": states}
    whole, again = Rates(), Rates()
    pretrain(text, tmp_path / "whole", recipe, callbacks=[whole], **exact)
    steps = max(whole.found)
    shutil.copytree(tmp_path / "states" / "tokenizer", tmp_path / "kept" / "tokenizer")
    shutil.rmtree(tmp_path / "states")
    (tmp_path / "kept").rename(tmp_path / "states")
    with pytest.raises(Interrupted):
        pretrain(text, tmp_path / "model", recipe, callbacks=[Stop(steps - 1)], **exact)
    assert not list((tmp_path / "model.work").glob("states*"))
    shutil.rmtree(tmp_path / "model.work")
    pretrain(text, tmp_path / "model", recipe, callbacks=[again], **exact)
    assert 1 < min(again.found) < steps
    ours, theirs = (lmzoo.models.Pretrainer.from_preset(tmp_path / name) for name in ("model", "whole"))
    for one, other in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_array_equal(one, other)
