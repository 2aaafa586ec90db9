"""Heads of one output against torch transformers on random weights: the same layouts, names and numbers."""

from __future__ import annotations

import numpy as np
import pytest

from lmzoo.models import BertBackbone, MultipleChoice, TextRegressor
from tests.families.test_family_transformers import ROBERTA, TINY, albert, common, distilbert, peer, roberta, run_peer
from tests.reference.weights import difference, padded_batch, randomise, run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("eager")

TOLERANCE = 1e-5
CHOICES = 3
BERT = {**ROBERTA, r"pooler/dense/": "pooler.dense.", r"classifier/logits/": "classifier."}
# The layer that is the head's in RoBERTa's other tasks is a pooler there.
ROBERTA_CHOICE = {**ROBERTA, r"classifier/dense/": "pooler.dense.", r"classifier/logits/": "classifier."}


def bert():
    return BertBackbone(**TINY), transformers.BertConfig(**common("gelu")), BERT


FAMILIES = {"Bert": bert, "Roberta": roberta, "Albert": albert, "DistilBert": distilbert}


def batch_for(backbone, *shape):
    """Padded rows, (*shape, 19)."""
    lengths = np.random.default_rng(29).integers(1, 20, int(np.prod(shape)))
    batch = padded_batch(tuple(lengths), 19)
    # RoBERTa counts positions by the padding id, 1; elsewhere it is an id like any other.
    batch["token_ids"] = np.where(batch["padding_mask"] > 0, np.maximum(batch["token_ids"], 2), 1).astype("int32")
    return {name: batch[name].reshape(*shape, 19) for name in backbone.input}


def check(task, model, batch, labels):
    """Outputs and loss are theirs."""
    ours, theirs = run(task, batch), run_peer(model, batch, labels=torch.tensor(labels))
    assert ours.shape == theirs.logits.shape
    assert difference(ours, theirs.logits.numpy()) <= TOLERANCE
    assert np.ptp(ours) > 1e-2
    loss = task.evaluate(batch, labels, verbose=0, return_dict=True)["loss"]
    assert loss == pytest.approx(float(theirs.loss), rel=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_regression(family):
    backbone, config, table = FAMILIES[family]()
    config.num_labels, config.problem_type = 1, "regression"
    task = TextRegressor(backbone)
    randomise(task)
    model = peer(family, "ForSequenceClassification", config, task, table)
    check(task, model, batch_for(backbone, 5), np.array([0.5, 4.0, -1.0, 2.5, 3.0], "float32"))


@pytest.mark.parametrize("family", FAMILIES)
def test_multiple_choice(family):
    backbone, config, table = FAMILIES[family]()
    task = MultipleChoice(backbone)
    randomise(task)
    model = peer(family, "ForMultipleChoice", config, task, ROBERTA_CHOICE if family == "Roberta" else table)
    check(task, model, batch_for(backbone, 5, CHOICES), np.array([0, 2, 1, 1, 0]))
