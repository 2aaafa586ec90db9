"""Blocks that are computed again in the backward pass: equal training, with less memory."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers import SelfAttention
from lmzoo.models import AlbertBackbone, Backbone, BertBackbone, ElmoBackbone
from tests.reference.weights import difference, padded_batch, randomise, to_numpy

TINY = {
    "vocabulary_size": 131,
    "num_layers": 2,
    "num_heads": 5,
    "hidden_dim": 35,
    "intermediate_dim": 53,
    "max_sequence_length": 67,
    "dropout": 0.3,
}


def build(family, **overrides):
    keras.utils.set_random_seed(1301)
    arguments = {**TINY, **({"embedding_dim": 13, "num_layers": 3} if family is AlbertBackbone else {}), **overrides}
    backbone = family(**arguments)
    randomise(backbone)
    return backbone


MODES = {"eager": {"run_eagerly": True}, "graph": {"jit_compile": False}, "jit": {"jit_compile": True}}
# TensorFlow traces and compiles for seconds; JAX compiles operation by operation in eager mode.
QUICKEST = "jit" if keras.backend.backend() == "jax" else "eager"


def train(backbone, mode, steps=2):
    """Train both outputs with dropout, and return the losses, and the weights and seeds after the last step."""
    outputs = [backbone.output["sequence_output"], backbone.output["pooled_output"]]
    model = keras.Model(backbone.input, outputs)
    model.compile(keras.optimizers.SGD(0.1), ["mse", "mse"], **MODES[mode])
    batch = padded_batch()
    rows, width = batch["token_ids"].shape
    targets = [np.ones((rows, width, 35), "float32"), np.zeros((rows, 35), "float32")]
    losses = [model.train_on_batch(batch, targets) for _ in range(steps)]
    return losses, [to_numpy(v.value) for v in backbone.variables]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "mode"),
    [
        pytest.param(BertBackbone, "eager", marks=pytest.mark.tf_only),
        pytest.param(AlbertBackbone, "graph", marks=pytest.mark.tf_only),
        pytest.param(BertBackbone, "graph", marks=pytest.mark.tf_only),
        (BertBackbone, "jit"),
        (AlbertBackbone, "jit"),
    ],
)
def test_remat_does_not_change_training(family, mode):
    expected = train(build(family), "eager" if mode == "graph" else mode)  # saves the time of tracing
    assert difference(train(build(family, remat=True), mode), expected) <= 2e-5
    assert difference(expected[1], [to_numpy(v.value) for v in build(family).variables]) > 0.01


@pytest.mark.half_precision
@pytest.mark.slow
def test_a_frozen_block_is_not_rounded_in_mixed_precision():
    results = []
    for remat in (False, True):
        backbone = build(BertBackbone, dtype="mixed_bfloat16", remat=remat)
        backbone.get_layer("block_0").trainable = False
        frozen = [to_numpy(v.value) for v in backbone.get_layer("block_0").weights]
        results.append(train(backbone, QUICKEST, steps=1))
        assert difference([to_numpy(v.value) for v in backbone.get_layer("block_0").weights], frozen) == 0
    assert difference(results[1], results[0]) <= 2e-3


@pytest.mark.tf_only
def test_blocks_run_again_in_the_backward_pass(monkeypatch):
    import tensorflow as tf

    calls, call = [], SelfAttention.call

    def spy(self, *arguments, **kwargs):
        calls.append(self.path)
        return call(self, *arguments, **kwargs)

    monkeypatch.setattr(SelfAttention, "call", spy)
    for remat, training, recomputed in ((False, True, 0), (True, False, 0), (True, True, 3)):
        backbone = build(BertBackbone, remat=remat)
        calls.clear()
        with tf.GradientTape() as tape:
            outputs = backbone(padded_batch(), training=training)
            loss = tf.reduce_sum(outputs["sequence_output"] ** 2) + tf.reduce_sum(outputs["pooled_output"] ** 2)
        assert len(calls) == 3  # the last block runs for all positions and for the first
        tape.gradient(loss, [v.value for v in backbone.trainable_variables])
        assert len(calls) == 3 + recomputed


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX reports XLA's memory")
def test_remat_needs_less_than_half_the_memory():
    import jax

    def memory(remat):
        backbone = build(AlbertBackbone, num_layers=7, remat=remat)

        def loss(weights, state, inputs):
            outputs, state = backbone.stateless_call(weights, state, inputs, training=True)
            return (outputs["sequence_output"] ** 2).sum(), state

        parts = (backbone.trainable_variables, backbone.non_trainable_variables)
        values = [[v.value for v in variables] for variables in parts]
        compiled = jax.jit(jax.grad(loss, has_aux=True)).lower(*values, padded_batch(width=61)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(True) < 0.5 * memory(False)


@pytest.mark.slow
def test_remat_is_an_option_of_backbones():
    backbone = build(BertBackbone, remat=True)
    assert "remat" not in build(BertBackbone).get_config()
    assert [block.remat for block in type(backbone).from_config(backbone.get_config()).blocks] == [True, True]
    loaded = Backbone.from_preset("bert_nano_en_uncased", load_weights=False, remat=True)
    assert loaded.remat
    assert all(block.remat for block in loaded.blocks)
    with pytest.raises(ValueError, match="ElmoBackbone has no blocks to compute again"):
        ElmoBackbone(lstm_dim=12, projection_dim=6, filters=((1, 5), (2, 8)), remat=True)
