"""BERT's configuration: validation, defaults, round trips, dropout."""

from __future__ import annotations

import dataclasses
import inspect
import math

import keras
import numpy as np
import pytest

from lmzoo.families.bert import BertConfig
from lmzoo.models import BertBackbone, MaskedLM
from tests.families.test_parameter_counts import build, count
from tests.reference.weights import TINY, padded_batch, run, tiny_backbone


def test_unknown_and_missing_arguments_are_named():
    with pytest.raises(TypeError, match=r"BertBackbone: .*unexpected keyword argument 'hidden_size'"):
        BertBackbone(**TINY, hidden_size=35)
    with pytest.raises(TypeError, match=r"BertBackbone: .*missing.*'num_heads'"):
        BertBackbone(**{name: value for name, value in TINY.items() if name != "num_heads"})


def test_signature_lists_the_fields_and_defaults():
    parameters = inspect.signature(BertBackbone).parameters
    common = {"dtype", "name", "trainable", "remat", "fine_tuning"}
    assert set(parameters) == {f.name for f in dataclasses.fields(BertConfig)} | common
    defaults = {"dropout": 0.1, "max_sequence_length": 512, "num_segments": 2, "activation": "gelu", "dtype": None}
    assert {name: parameters[name].default for name in defaults} == defaults
    assert parameters["layer_norm_epsilon"].default == 1e-12


def test_get_config_round_trips():
    changes = {"dropout": 0.3, "activation": "gelu_tanh", "layer_norm_epsilon": 1e-7, "initializer_range": 0.05}
    options = {"dtype": "mixed_bfloat16", "trainable": False, "name": "mine"}
    backbone = BertBackbone(**{**TINY, **changes}, num_segments=3, **options)
    config = backbone.get_config()
    assert {name: config[name] for name in (*changes, "name")} == {**changes, "name": "mine"}
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(backbone))
    assert isinstance(copy, BertBackbone)
    assert copy.get_config() == config
    assert not copy.trainable
    assert copy.dtype_policy.name == "mixed_bfloat16"
    assert copy.config == backbone.config == BertConfig(**{**TINY, **changes}, num_segments=3)
    assert [(w.path, w.shape) for w in copy.weights] == [(w.path, w.shape) for w in backbone.weights]


def test_dropout_acts_in_training_only():
    backbone, batch = tiny_backbone(dropout=0.5), padded_batch()
    exact = run(tiny_backbone(), batch)["pooled_output"]
    np.testing.assert_allclose(run(backbone, batch)["pooled_output"], exact, atol=1e-6)
    first, second = (backbone(batch, training=True)["pooled_output"] for _ in range(2))
    assert keras.ops.max(keras.ops.abs(first - second)) > 0.01


def test_parameters_counted_by_parts_equal_those_of_a_masked_lm():
    shape = (3, 35, 53, 5)
    backbone, masked_lm = count(BertBackbone, 131, shape)
    model = MaskedLM(build(BertBackbone, 131, *shape))
    assert model.backbone.count_params() == backbone
    assert model.count_params() - model.backbone.pooler.count_params() == masked_lm
    assert sum(math.prod(v.shape) for v in model.trainable_variables) == masked_lm
