"""ALBERT's shared layers: the loop over them, its copied kernels, and LoRA."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest

from lmzoo.families.albert.backbone import lengthen_kernels
from lmzoo.models import AlbertBackbone
from tests.reference.weights import (
    difference,
    padded_batch,
    projections,
    randomise,
    relative_difference,
    run,
    to_numpy,
)

TINY = {
    "vocabulary_size": 131,
    "num_layers": 6,
    "num_heads": 5,
    "hidden_dim": 35,
    "intermediate_dim": 53,
    "embedding_dim": 13,
    "num_groups": 2,
    "num_inner_repetitions": 2,
    "max_sequence_length": 67,
}


def build(**overrides):
    keras.utils.set_random_seed(1301)
    backbone = AlbertBackbone(**{**TINY, **overrides})
    randomise(backbone)
    return backbone


@pytest.mark.quick_cases("float32")
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_loop_equals_unrolled(dtype):
    outputs = [run(build(unroll=unroll, dtype=dtype), padded_batch()) for unroll in (False, True)]
    assert len(outputs[0]["hidden_states"]) == 6 * 2 + 1
    # bfloat16 has 8 bits, but compilers keep more between some operations.
    assert difference(*outputs) <= (1e-5 if dtype == "float32" else 0.1)


def test_each_application_changes_the_hidden_states():
    states = run(build(), padded_batch())["hidden_states"]
    assert min(np.abs(a - b).max() for a, b in itertools.pairwise(states)) > 0.1


# TensorFlow is faster without `jit_compile`; JAX without it compiles operation by operation.
@pytest.mark.quick_cases("True")
@pytest.mark.parametrize(
    "jit_compile",
    [
        pytest.param(jit, marks=() if jit == (keras.backend.backend() == "jax") else pytest.mark.slow)
        for jit in (False, True)
    ],
)
def test_training_in_the_loop_equals_unrolled_with_dropout(jit_compile):
    """Two steps give the same weights: the loop draws the same dropout masks in the same order, and each only once."""
    results = []
    for unroll in (False, True):
        # With 512 columns, the loop copies kernels into longer rows; see the next tests.
        sizes = {"num_layers": 4, "num_inner_repetitions": 1, "intermediate_dim": 512}
        backbone = build(**sizes, unroll=unroll, dropout=0.3)
        for seed, block in enumerate(backbone.encoder.blocks):
            for variable in block.non_trainable_variables:
                variable.assign(np.array([seed, len(variable.path)], variable.dtype))
        model = keras.Model(backbone.input, backbone.output["sequence_output"])
        # Unrolled blocks run eagerly on TensorFlow, to save the time of tracing.
        eagerly = unroll and not jit_compile and keras.backend.backend() == "tensorflow"
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_compile, run_eagerly=eagerly)
        target = np.ones((3, 19, 35), "float32")
        losses = [model.train_on_batch(padded_batch(), target) for _ in range(2)]
        results.append((losses, [to_numpy(v.value) for v in backbone.weights]))
    assert results[0][0][0] != results[0][0][1]
    assert difference(*results) <= 1e-4


WIDE = {"num_layers": 2, "num_groups": 1, "num_inner_repetitions": 1, "num_heads": 4, "hidden_dim": 512}


def kernels_copied(backbone):
    """Return the shapes of the kernels that the backbone's loop copies, by layer name."""
    (block,) = backbone.encoder.groups[0]
    copies = lengthen_kernels(block, [v.value for v in block.trainable_variables])
    attention = block.attention
    layers = attention.query, attention.key, attention.value, attention.output_dense
    layers = {f"attention/{layer.name}": layer for layer in layers}
    layers |= {layer.name: layer for layer in (block.intermediate_dense, block.output_dense)}
    return {name: copies[layer].shape for name, layer in layers.items() if layer in copies}


@pytest.mark.tf_only
def test_the_loop_copies_wide_trainable_kernels(monkeypatch):
    outputs = {"attention/output_dense": (512, 528), "output_dense": (53, 528)}
    assert kernels_copied(build(**WIDE)) == outputs
    assert not kernels_copied(build(**WIDE, dtype="mixed_bfloat16"))
    assert not kernels_copied(build(**WIDE, remat=True))
    backbone = build(**WIDE)
    monkeypatch.setattr("lmzoo.families.albert.backbone.MAX_JOINED_WIDTH", 511)
    projections = {f"attention/{name}": (512, 528) for name in ("query", "key", "value")}
    assert kernels_copied(backbone) == outputs | projections
    backbone.encoder.blocks[0].output_dense.trainable = False
    backbone.encoder.blocks[0].attention.query.enable_lora(3)
    assert kernels_copied(backbone).keys() == (outputs | projections).keys() - {"output_dense", "attention/query"}


@pytest.mark.tf_only
def test_copied_kernels_have_the_gradients_of_unrolled_blocks(monkeypatch):
    import tensorflow as tf

    for module in ("families.albert.backbone", "layers.attention"):
        monkeypatch.setattr(f"lmzoo.{module}.MAX_JOINED_WIDTH", 511)
    gradients = []
    for unroll in (False, True):
        backbone = build(**WIDE, unroll=unroll, dropout=0.0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(backbone(padded_batch(), training=True)["sequence_output"] ** 3)
        kernels = [weight for weight in backbone.encoder.trainable_variables if weight.name == "kernel"]
        gradients.append([to_numpy(gradient) for gradient in tape.gradient(loss, kernels)])
    assert len(kernels) == 6
    for actual, expected in zip(*gradients, strict=True):
        assert relative_difference(actual, expected) <= 1e-5


def test_lora_adapts_the_shared_blocks():
    backbone = build(dropout=0.0)
    before = run(backbone, padded_batch())
    kernels = projections(backbone)
    backbone.enable_lora(3)
    assert all(map(np.array_equal, kernels, projections(backbone)))  # the updates start at 0
    # Adapted projections are no longer fused into one product, which processors sum in another order.
    assert relative_difference(run(backbone, padded_batch()), before) <= 1e-6
    trained = [weight.path for weight in backbone.trainable_weights]
    assert len(trained) == 4 * 2 * 2  # blocks, projections, factors
    assert all("lora" in path for path in trained)


@pytest.mark.half_precision
def test_training_does_not_round_frozen_weights():
    backbone = build(dtype="mixed_bfloat16", dropout=0.3)
    backbone.trainable = False
    before = [to_numpy(v.value) for v in backbone.weights]
    backbone(padded_batch(), training=True)
    assert difference([to_numpy(v.value) for v in backbone.weights], before) == 0
