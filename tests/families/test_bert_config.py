"""Configuration: validation, round trips, inputs and outputs by name."""

from __future__ import annotations

import dataclasses
import inspect
import math

import keras
import numpy as np
import pytest

from lmzoo.families.bert import BertConfig
from lmzoo.models import Backbone, BertBackbone, MaskedLM
from tests.families.test_parameter_counts import build, count
from tests.reference.weights import TINY, padded_batch, run, tiny_backbone


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, 0) for name in TINY if name != "dropout"),
        *((name, 2.5) for name in TINY if name != "dropout"),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("num_segments", -1),
        ("activation", "gelu_new"),
        ("hidden_dim", 36),
        ("num_layers", 1_000_000),
        ("layer_norm_epsilon", -5),
        ("layer_norm_epsilon", 0),
        ("layer_norm_epsilon", math.nan),
        ("initializer_range", math.inf),
    ],
)
def test_errors_name_the_field_and_its_value(field, value):
    expected = "Unknown activation 'gelu_new'; known: 'gelu'" if field == "activation" else f"`{field}`.*{value}"
    with pytest.raises(ValueError, match=expected):
        BertBackbone(**{**TINY, field: value})


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


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_get_config_round_trips(dtype):
    changed = {"dropout": 0.3, "activation": "gelu_tanh", "layer_norm_epsilon": 1e-7, "num_segments": 3, "name": "mine"}
    backbone = BertBackbone(**{**TINY, **changed}, dtype=dtype, trainable=False, initializer_range=0.05)
    config = backbone.get_config()
    assert {name: config[name] for name in changed} == changed
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(backbone))
    assert isinstance(copy, BertBackbone)
    assert copy.get_config() == config
    assert not copy.trainable
    assert copy.dtype_policy.name == dtype
    assert copy.config == backbone.config == BertConfig(**{**TINY, **changed_fields(changed)}, initializer_range=0.05)
    assert [(w.path, w.shape) for w in copy.weights] == [(w.path, w.shape) for w in backbone.weights]


def changed_fields(changed):
    return {name: value for name, value in changed.items() if name != "name"}


def test_inputs_and_outputs_are_dicts():
    backbone = tiny_backbone()
    assert isinstance(backbone, Backbone)
    assert set(backbone.input) == {"token_ids", "padding_mask", "segment_ids"}
    assert all(i.shape == (None, None) and i.dtype == "int32" for i in backbone.input.values())
    assert backbone.output["sequence_output"].shape == (None, None, 35)
    assert backbone.output["pooled_output"].shape == (None, 35)
    assert [h.shape for h in backbone.output["hidden_states"]] == [(None, None, 35)] * 4
    probe = keras.Model(backbone.input, backbone.output["hidden_states"][1])
    batch = padded_batch()
    np.testing.assert_allclose(run(probe, batch), run(backbone, batch)["hidden_states"][1], atol=1e-6)


def test_dropout_acts_in_training_only():
    backbone, batch = tiny_backbone(dropout=0.5), padded_batch()
    exact = run(tiny_backbone(), batch)["pooled_output"]
    np.testing.assert_allclose(run(backbone, batch)["pooled_output"], exact, atol=1e-6)
    first, second = (backbone(batch, training=True)["pooled_output"] for _ in range(2))
    assert keras.ops.max(keras.ops.abs(first - second)) > 0.01


def test_parameters_counted_by_parts_are_those_of_whole_models():
    shape = (131, 3, 35, 53, 5)
    backbone, masked_lm = count(*shape)
    model = MaskedLM(build(*shape))
    assert model.backbone.count_params() == backbone
    assert model.count_params() - model.backbone.pooler.count_params() == masked_lm
    assert sum(math.prod(v.shape) for v in model.trainable_variables) == masked_lm
