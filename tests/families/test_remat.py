"""Blocks that are computed again in the backward pass: the same training, with less kept."""

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
# Eagerly on TensorFlow: to trace and compile takes seconds. JAX compiles operation by operation where it runs eagerly.
QUICKEST = "jit" if keras.backend.backend() == "jax" else "eager"


def trained(backbone, mode, steps=2):
    """Weights and seeds after some steps, with dropout, and the losses; all outputs take part."""
    outputs = [backbone.output["sequence_output"], backbone.output["pooled_output"]]
    model = keras.Model(backbone.input, outputs)
    model.compile(keras.optimizers.SGD(0.1), ["mse", "mse"], **MODES[mode])
    batch = padded_batch()
    rows, width = batch["token_ids"].shape
    targets = [np.ones((rows, width, 35), "float32"), np.zeros((rows, 35), "float32")]
    losses = [model.train_on_batch(batch, targets) for _ in range(steps)]
    return losses, [to_numpy(v.value) for v in backbone.variables]


@pytest.mark.slow_cases("AlbertBackbone-graph", "BertBackbone-eager")
@pytest.mark.parametrize(
    ("family", "mode"),
    [
        pytest.param(BertBackbone, "eager", marks=pytest.mark.tf_only),
        pytest.param(AlbertBackbone, "graph", marks=pytest.mark.tf_only),
        pytest.param(BertBackbone, "graph", marks=[pytest.mark.slow, pytest.mark.tf_only]),
        pytest.param(BertBackbone, "jit", marks=pytest.mark.slow),
        pytest.param(AlbertBackbone, "jit", marks=pytest.mark.slow),
    ],
)
def test_training_is_the_same(family, mode):
    plain = trained(build(family), "eager" if mode == "graph" else mode)  # without tracing
    again = trained(build(family, remat=True), mode)
    assert difference(again, plain) <= 2e-5
    assert difference(plain[1], [to_numpy(v.value) for v in build(family).variables]) > 0.01


@pytest.mark.slow
def test_a_frozen_block_in_mixed_precision():
    results = []
    for remat in (False, True):
        backbone = build(BertBackbone, dtype="mixed_bfloat16", remat=remat)
        backbone.get_layer("block_0").trainable = False
        frozen = [to_numpy(v.value) for v in backbone.get_layer("block_0").weights]
        results.append(trained(backbone, QUICKEST, steps=1))
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
    for remat, training, again in ((False, True, 0), (True, False, 0), (True, True, 3)):
        backbone = build(BertBackbone, remat=remat)
        calls.clear()
        with tf.GradientTape() as tape:
            outputs = backbone(padded_batch(), training=training)
            loss = tf.reduce_sum(outputs["sequence_output"] ** 2) + tf.reduce_sum(outputs["pooled_output"] ** 2)
        assert len(calls) == 3  # the last block once for all positions and once for the first
        tape.gradient(loss, [v.value for v in backbone.trainable_variables])
        assert len(calls) == 3 + again


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="XLA's own account of its memory, read from JAX")
def test_less_is_kept():
    import jax

    def memory(remat):
        backbone = build(AlbertBackbone, num_layers=7, remat=remat)

        def loss(weights, others, inputs):
            outputs, others = backbone.stateless_call(weights, others, inputs, training=True)
            return (outputs["sequence_output"] ** 2).sum(), others

        state = [[v.value for v in part] for part in (backbone.trainable_variables, backbone.non_trainable_variables)]
        compiled = jax.jit(jax.grad(loss, has_aux=True)).lower(*state, padded_batch(width=61)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(True) < 0.5 * memory(False)


@pytest.mark.slow
def test_an_option_of_backbones():
    backbone = build(BertBackbone, remat=True)
    assert "remat" not in build(BertBackbone).get_config()
    assert [block.remat for block in type(backbone).from_config(backbone.get_config()).blocks] == [True, True]
    loaded = Backbone.from_preset("bert_nano_en_uncased", load_weights=False, remat=True)
    assert loaded.remat
    assert all(block.remat for block in loaded.blocks)
    with pytest.raises(ValueError, match="ElmoBackbone has no blocks to compute again"):
        ElmoBackbone(lstm_dim=12, projection_dim=6, filters=((1, 5), (2, 8)), remat=True)
