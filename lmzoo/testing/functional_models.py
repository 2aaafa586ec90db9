"""Comparison of functional models with copies that Keras clones, builds from JSON, or loads."""

from __future__ import annotations

import tempfile

import keras

from lmzoo.common.tensor_types import Features, Tensor, Tensors
from lmzoo.testing.exported_answers import assert_close
from lmzoo.testing.other_backend import compiles_each_operation


def assert_copies_agree(model: keras.Model, features: Features) -> None:
    """Check that copies of a model, and of a functional model built on top of it, have the same outputs.

    Args:
        model: a functional model.
        features: inputs of the model, by name.

    Raises:
        AssertionError: If the outputs or the number of trainable weights of a copy differ.
    """
    functional_model = keras.Model(model.input, [_apply_on_top(x) for x in keras.tree.flatten(model.output)])
    with tempfile.TemporaryDirectory() as folder:
        functional_model.save(f"{folder}/functional.keras")
        loaded_model = keras.saving.load_model(f"{folder}/functional.keras")
    copies = {
        "load_model": loaded_model,
        "clone_model": keras.models.clone_model(functional_model),
        "model_from_json": keras.models.model_from_json(functional_model.to_json()),
    }
    expected = _predict(functional_model, features)
    for name, copy in copies.items():
        if copy is not loaded_model:
            copy.set_weights(functional_model.get_weights())
        assert_close(_predict(copy, features), expected, f"{name} of a functional model")
        weight_counts = [len(model.trainable_weights) for model in (copy, functional_model)]
        assert weight_counts[0] == weight_counts[1], (
            f"{name} trains {weight_counts[0]} weights, and the functional model {weight_counts[1]}"
        )
    clone = keras.models.clone_model(model)
    clone.set_weights(keras.Model(model.input, model.output).get_weights())  # without weights that no output depends on
    assert_close(_predict(clone, features), _predict(model, features), "clone_model")


def _apply_on_top(output: Tensor) -> Tensor:
    """Apply a layer to an output: `Dense` if the output's width is known, else `Rescaling`."""
    layer = keras.layers.Rescaling(0.5) if output.shape[-1] is None else keras.layers.Dense(3)
    return layer(output)


def _predict(model: keras.Model, features: Features) -> Tensors:
    model.run_eagerly = not compiles_each_operation()
    return model.predict_on_batch({name: features[name] for name in model.input})
