"""Heads of one output in files of transformers, multiple choice and regression: loaded, written, told apart."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lmzoo.models import Backbone, MultipleChoice, TextClassifier, TextRegressor
from lmzoo.presets import PresetError
from lmzoo.presets.converting import convert, save_checkpoint
from lmzoo.presets.verifying import verify
from lmzoo.registry.family import families
from lmzoo.testing import tiny_backbone, tiny_task
from tests.checkpoints.model_files import CHOICES, configure, load, padded_rows, peer, rewrite, run_peer
from tests.reference.weights import difference, run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Our class, the shape of a batch without the length, and keys of the configuration.
HEADS = {
    "ForMultipleChoice": (MultipleChoice, (5, CHOICES), {}),
    "ForSequenceClassification": (TextRegressor, (5,), {"num_labels": 1}),
}


@pytest.mark.slow_cases("ForMultipleChoice")
@pytest.mark.parametrize("head", HEADS)
def test_logits_and_loss_equal_those_of_transformers(head, tmp_path):
    cls, shape, settings = HEADS[head]
    theirs = peer("distilbert", head, tmp_path, **settings)
    task = load(tmp_path, cls)
    batch = padded_rows(task.backbone, *shape)
    labels = np.array([0, 2, 1, 1, 0]) if cls is MultipleChoice else np.array([0.5, 4.0, -1.0, 2.5, 3.0], "float32")
    expected = run_peer(theirs, batch, labels=torch.tensor(labels))
    assert difference(run(task, batch), expected.logits.numpy()) <= 1e-5
    assert np.ptp(expected.logits.numpy()) > 1e-2
    loss = task.evaluate(batch, labels, verbose=0, return_dict=True)["loss"]
    assert loss == pytest.approx(float(expected.loss), rel=1e-5)


@pytest.mark.parametrize("problem", ["regression", None])
def test_a_head_of_one_label_is_a_regressor(problem, tmp_path):
    peer("bert", "ForSequenceClassification", tmp_path, num_labels=1, problem_type=problem, classifier_dropout=0.25)
    assert load(tmp_path, TextRegressor).head.dropout.rate == 0.25


def test_the_dropout_of_choices_is_read(tmp_path):
    peer("distilbert", "ForMultipleChoice", tmp_path, seq_classif_dropout=0.35)
    assert load(tmp_path, MultipleChoice).head.dropout.rate == 0.35


def test_a_classifier_is_not_a_regressor(tmp_path):
    peer("bert", "ForSequenceClassification", tmp_path, num_labels=3)
    message = "head of a TextClassifier, not of a TextRegressor. Call `TextClassifier.from"
    with pytest.raises(PresetError, match=message):
        load(tmp_path, TextRegressor)
    assert load(tmp_path, TextClassifier).num_classes == 3


def test_a_regressor_is_not_a_classifier(tmp_path):
    peer("bert", "ForSequenceClassification", tmp_path, num_labels=1)
    message = "head of a TextRegressor, not of a TextClassifier"
    with pytest.raises(PresetError, match=f"{message}. Call `TextRegressor.from"):
        load(tmp_path, TextClassifier)
    for arguments, count in (({"num_classes": 3}, 3), ({"labels": ["a", "b"]}, 2)):
        with pytest.warns(UserWarning, match=f"{message}, so a new one starts"):
            assert load(tmp_path, TextClassifier, **arguments).num_classes == count
    load(tmp_path, TextRegressor, load_weights=False)
    assert isinstance(load(tmp_path), Backbone)


def test_presets_tell_regressors_and_classifiers_apart(tmp_path):
    tiny_task(TextRegressor, families()["bert"]).save_to_preset(tmp_path)
    with pytest.raises(PresetError, match="holds the head of a TextRegressor"):
        TextClassifier.from_preset(tmp_path)


def test_regressors_of_several_outputs_are_refused(tmp_path):
    peer("bert", "ForSequenceClassification", tmp_path, num_labels=3, problem_type="regression")
    with pytest.raises(PresetError, match=r"config\.json: The head returns 3 numbers, a TextRegressor only one\. Load"):
        load(tmp_path, TextRegressor)
    assert isinstance(load(tmp_path), Backbone)


def test_multiple_labels_are_read_and_written(tmp_path):
    settings = {"num_labels": 3, "problem_type": "multi_label_classification"}
    peer("bert", "ForSequenceClassification", tmp_path / "theirs", **settings)
    task = load(tmp_path / "theirs", TextClassifier)
    assert task.multi_label
    save_checkpoint(task, tmp_path / "ours", to="hf")
    with pytest.raises(PresetError, match="'tf1' cannot express `multi_label=True` of a TextClassifier"):
        save_checkpoint(task, tmp_path / "google", to="tf1")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
    assert (config.problem_type, config.num_labels) == ("multi_label_classification", 3)
    save_checkpoint(TextClassifier(task.backbone, num_classes=3), tmp_path / "single", to="hf")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "single").problem_type is None


def test_robertas_pooler_belongs_to_its_head(tmp_path):
    """The backbone alone does not read it, and multiple choice needs it."""
    peer("roberta", "ForMultipleChoice", tmp_path)
    load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    configure(tmp_path, architectures=["RobertaModel"])
    assert verify(tmp_path)["not read: a pooler, which multiple choice alone uses"].startswith("2: ")
    configure(tmp_path, **config)
    rewrite(tmp_path, lambda s: {name: tensor for name, tensor in s.items() if "pooler" not in name})
    with pytest.raises(PresetError, match=r"lacks 'pooler.dense.weight'"):
        load(tmp_path, MultipleChoice)


def test_mean_pooling_cannot_be_written(tmp_path):
    """transformers would use the first token's vector."""
    backbone = tiny_backbone(families()["bert"])
    for task_class, classes in ((MultipleChoice, {}), (TextClassifier, {"num_classes": 3}), (TextRegressor, {})):
        task = task_class(backbone, pooling="mean", **classes)
        with pytest.raises(PresetError, match=f"cannot express `pooling='mean'` of a {task_class.__name__}"):
            save_checkpoint(task, tmp_path / "new", to="hf")
        assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("cls", "inputs"),
    [
        (TextRegressor, ["a good film", "dull"]),
        (MultipleChoice, [("a", ["good film", "dull"]), ("the", ["end", "film", "a"])]),
    ],
)
def test_converted_tasks_give_the_same_predictions(cls, inputs, tmp_path):
    """The tokenizer is converted with the model."""
    task = tiny_task(cls, families()["roberta"])
    task.save_to_preset(tmp_path / "keras")
    convert(tmp_path / "keras", tmp_path / "hf", to="hf")
    outputs = cls.from_preset(tmp_path / "hf").predict(inputs, verbose=0)
    np.testing.assert_allclose(outputs, task.predict(inputs, verbose=0), atol=1e-6, rtol=1e-6)
