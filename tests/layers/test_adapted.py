"""Layers with LoRA in files: updates of quantized weights are stored separately, others are added to the weights."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lmzoo.layers.adapted import (
    Dense,
    EinsumDense,
    Embedding,
    ReversibleEmbedding,
    get_base_weight,
    get_updates,
    leave_out_merged_updates,
)
from lmzoo.layers.sublayers import get_stored_weights

MAKERS = {
    "dense": lambda dtype: (Dense(7, dtype=dtype), (None, 5)),
    "einsum": lambda dtype: (EinsumDense("bh,hnd->bnd", (3, 7), dtype=dtype), (None, 5)),
    "embedding": lambda dtype: (Embedding(11, 7, dtype=dtype), (None,)),
    "reversible": lambda dtype: (ReversibleEmbedding(11, 7, dtype=dtype), (None,)),
}


def make(kind, dtype=None):
    layer, shape = MAKERS[kind](dtype)
    layer.build(shape)
    return layer


def adapt(layer):
    layer.enable_lora(2)
    layer.keeps_updates = True


def make_adapted(kind):
    """Return a layer with LoRA whose weights and updates are all random."""
    layer = make(kind)
    adapt(layer)
    for weight in layer.weights:
        weight.assign(np.random.default_rng(3).normal(size=weight.shape))
    return layer


def outputs(layer):
    if isinstance(layer, keras.layers.Embedding):
        return keras.ops.convert_to_numpy(layer(np.arange(11)))
    return keras.ops.convert_to_numpy(layer(np.random.default_rng(2).normal(size=(3, 5)).astype("float32")))


def get_stored(layer):
    store = {}
    layer.save_own_variables(store)
    return {name: keras.ops.convert_to_numpy(value) for name, value in store.items()}


@pytest.mark.parametrize("mode", ["int8", "int4"])
@pytest.mark.parametrize("kind", MAKERS)
def test_updates_of_quantized_weights_are_stored(kind, mode):
    layer = make(kind)
    layer.quantize(mode)
    adapt(layer)
    for weight in layer.weights:
        if weight.name.startswith("lora_"):
            weight.assign(np.random.default_rng(3).normal(size=weight.shape))
    store, expected = get_stored(layer), outputs(layer)
    updates = {weight.name for weight in layer.weights if weight.name.startswith("lora_")}
    assert {name for name in store if name.startswith("lora_")} == updates
    clone = make(kind, layer.dtype_policy)
    adapt(clone)
    clone.load_own_variables(store)
    np.testing.assert_array_equal(outputs(clone), expected)
    layer.load_own_variables(store)  # a fit that restores its best weights does this
    np.testing.assert_array_equal(outputs(layer), expected)


@pytest.mark.parametrize("kind", MAKERS)
def test_updates_of_float_weights_are_added(kind):
    layer = make_adapted(kind)
    store = get_stored(layer)
    clone = make(kind)
    clone.load_own_variables(store)
    np.testing.assert_allclose(outputs(clone), outputs(layer), rtol=1e-5, atol=1e-5)
    with leave_out_merged_updates([layer]):
        assert get_stored(layer).keys() == {name for name in store if not name.startswith("lora_")} < store.keys()


@pytest.mark.parametrize("kind", MAKERS)
def test_updates_of_float_weights_are_restored(kind):
    layer = make_adapted(kind)
    store = get_stored(layer)
    clone = make(kind)
    adapt(clone)
    clone.load_own_variables(store)
    for weight, expected in zip(clone.weights, layer.weights, strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-5, err_msg=weight.path)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("rank", [None, 3])
def test_weights_without_fitting_updates_are_loaded_with_new_updates(kind, rank):
    layer = make(kind)
    if rank:
        layer.enable_lora(rank)
        layer.keeps_updates = True
    for weight in layer.weights:
        weight.assign(np.random.default_rng(3).normal(size=weight.shape))
    clone = make(kind)
    adapt(clone)
    clone.load_own_variables(get_stored(layer))
    np.testing.assert_allclose(outputs(clone), outputs(layer), rtol=1e-5, atol=1e-5)
    first, second = get_updates(clone)
    assert np.abs(first).min() > 0  # if both were zero, neither would have a gradient
    assert not np.any(second)


@pytest.mark.parametrize("kind", MAKERS)
def test_float32_weights_are_not_rounded_to_the_compute_dtype(kind):
    layer = make(kind, "mixed_bfloat16")
    adapt(layer)
    for weight in layer.weights:
        weight.assign(np.random.default_rng(3).normal(size=weight.shape))
    first, second = (keras.ops.convert_to_numpy(update) for update in get_updates(layer))
    expected = keras.ops.convert_to_numpy(get_base_weight(layer)) + first @ second
    assert get_stored(layer)["0"].dtype == "float32"
    np.testing.assert_allclose(get_stored(layer)["0"], expected, atol=1e-6)
    inputs = keras.Input((None,) if isinstance(layer, keras.layers.Embedding) else (5,))
    stored = dict(get_stored_weights(keras.Model(inputs, layer(inputs))))
    assert not [path for path in stored if "lora" in path]
    np.testing.assert_allclose(stored[get_base_weight(layer).path], expected, atol=1e-6)


@pytest.mark.parametrize("kind", MAKERS)
def test_layers_are_restored_with_their_class(kind):
    layer = make(kind)
    assert isinstance(layer, getattr(keras.layers, type(layer).__name__))
    clone = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(clone) is type(layer)  # also in users' models with a backbone's layers
