"""Conformance checks of layers."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from lmzoo.common.tensor_types import Tensors
from lmzoo.testing.exported_answers import assert_close
from lmzoo.testing.other_backend import compiles_each_operation
from lmzoo.testing.tiny import SEED

DTYPE_POLICIES = ("float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")

# Function from the name of a dtype policy to a new layer.
Build: TypeAlias = Callable[[str], keras.layers.Layer]
# Function from the number of sequences to the arguments of a call: arrays, or lists, tuples and dicts of arrays.
Arguments: TypeAlias = Callable[[int], list[Any]]

_BATCH_SIZE = 3


def _make_symbolic_inputs(arrays: list[Any], fixed_batch: bool = False) -> list[Any]:
    """Return symbolic inputs with the shapes and dtypes of arrays; the batch size is unknown unless `fixed_batch`."""

    def make_input(array: np.ndarray) -> keras.KerasTensor:
        batch_size = array.shape[0] if fixed_batch else None
        return keras.Input(batch_shape=(batch_size, *array.shape[1:]), dtype=str(array.dtype))

    return keras.tree.map_structure(make_input, arrays)


def _build_layer(build: Build, arrays: list[Any], policy: str = "float32") -> keras.layers.Layer:
    """Build a layer with reproducible initial weights."""
    keras.utils.set_random_seed(SEED)
    layer = build(policy)
    layer(*_make_symbolic_inputs(arrays))
    return layer


def _compute(layer: Callable[..., Tensors], arrays: list[Any]) -> Tensors:
    """Compute a layer's outputs, in compiled code on JAX, where eager code would compile each operation separately."""
    tensors = keras.tree.map_structure(ops.convert_to_tensor, arrays)
    if not compiles_each_operation():
        return layer(*tensors)
    import jax

    return jax.jit(layer)(*tensors)


def _to_arrays(tensors: Tensors) -> list[np.ndarray]:
    return [ops.convert_to_numpy(ops.cast(x, "float32")) for x in keras.tree.flatten(tensors)]


def _make_functional(layer: keras.layers.Layer, arrays: list[Any], kind: str = "") -> tuple[keras.Model, list[Any]]:
    """Return a functional model of the layer, and the inputs to call it with.

    The model returns only outputs with `kind` in the name of their dtype, such as "float"; by default, all outputs.
    """
    inputs = _make_symbolic_inputs(arrays)
    outputs = [x for x in keras.tree.flatten(layer(*inputs)) if kind in x.dtype]
    model = keras.Model(keras.tree.flatten(inputs), outputs)
    model.run_eagerly = not compiles_each_operation()
    return model, keras.tree.flatten(arrays)


def check_layer_outputs(build: Build, arguments: Arguments, policies: Sequence[str] = DTYPE_POLICIES) -> None:
    """Check that outputs have the declared shapes and dtypes, and are finite, under each dtype policy."""
    arrays = arguments(_BATCH_SIZE)
    for policy in policies:
        layer = _build_layer(build, arrays, policy)
        outputs = _compute(layer, arrays)
        assert all(np.isfinite(array).all() for array in _to_arrays(outputs)), f"{policy}: not finite"
        for fixed_batch in (False, True):
            symbolic_outputs = layer(*_make_symbolic_inputs(arrays, fixed_batch))
            keras.tree.assert_same_structure(symbolic_outputs, outputs)
            for spec, tensor in zip(keras.tree.flatten(symbolic_outputs), keras.tree.flatten(outputs), strict=True):
                assert spec.dtype == keras.backend.standardize_dtype(tensor.dtype), policy
                sizes = tuple(tensor.shape)
                assert tuple(size or n for size, n in zip(spec.shape, sizes, strict=True)) == sizes, policy
                assert None not in spec.shape or not fixed_batch


def check_layer_config(build: Build, arguments: Arguments) -> None:
    """Check that a layer can be restored from its configuration as JSON, under each dtype policy."""
    for policy in DTYPE_POLICIES:
        layer = build(policy)
        config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
        clone = keras.saving.deserialize_keras_object(config)
        assert type(clone) is type(layer)
        assert json.dumps(clone.get_config()) == json.dumps(layer.get_config()), policy
        assert clone.dtype_policy.name == layer.dtype_policy.name


def check_layer_files(build: Build, arguments: Arguments) -> None:
    """Check that a functional model of the layer has the same outputs after saving and loading."""
    layer = _build_layer(build, arguments(_BATCH_SIZE))
    model, arrays = _make_functional(layer, arguments(_BATCH_SIZE))
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/layer.keras")
        loaded_model = keras.saving.load_model(f"{folder}/layer.keras")
    loaded_model.run_eagerly = model.run_eagerly
    assert_close(loaded_model.predict_on_batch(arrays), model.predict_on_batch(arrays), "a loaded model")


def check_layer_masks(build: Build, arguments: Arguments) -> None:
    """Check that bool and int masks give the same outputs, and that a Keras mask on the first argument has no effect.

    The Keras mask is True everywhere, and is tested only if the first argument is float32 with three axes. Warnings
    that the layer does not support masking are ignored.
    """
    arrays = arguments(_BATCH_SIZE)
    layer = _build_layer(build, arrays)
    expected = _to_arrays(_compute(layer, arrays))
    arrays_with_int_masks = keras.tree.map_structure(lambda a: a.astype("int32") if a.dtype == bool else a, arrays)
    assert_close(_to_arrays(_compute(layer, arrays_with_int_masks)), expected, "masks of integers")
    first_argument = arrays[0]
    if isinstance(first_argument, np.ndarray) and first_argument.ndim == 3 and first_argument.dtype == "float32":

        def call_with_mask(first_argument: Any, *rest: Any) -> Tensors:
            return layer(keras.layers.Masking(mask_value=1e9)(first_argument), *rest)  # the mask is True everywhere

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not support masking")
            assert_close(_to_arrays(_compute(call_with_mask, arrays)), expected, "an input with a mask of Keras")


def check_layer_training(build: Build, arguments: Arguments) -> None:
    """Check that a training step changes at least one weight of a trainable layer, and leaves all weights finite."""
    layer = _build_layer(build, arguments(_BATCH_SIZE))
    if not layer.trainable_weights:
        return
    model, arrays = _make_functional(layer, arguments(_BATCH_SIZE), "float")
    model.compile(keras.optimizers.SGD(0.01), loss="mse", run_eagerly=not compiles_each_operation())
    old_weights = [ops.convert_to_numpy(weight) for weight in model.trainable_weights]
    targets = [np.ones(x.shape, "float32") for x in keras.tree.flatten(model.predict_on_batch(arrays))]
    assert np.isfinite(model.train_on_batch(arrays, targets)).all()
    new_weights = [ops.convert_to_numpy(weight) for weight in model.trainable_weights]
    assert all(np.isfinite(array).all() for array in new_weights), "a gradient is not finite"
    assert any((a != b).any() for a, b in zip(new_weights, old_weights, strict=True)), "no weight has moved"


def check_layer_empty_batch(build: Build, arguments: Arguments) -> None:
    """Check that an empty batch gives outputs of the same shape as a full one, except for at most one empty axis."""
    layer = _build_layer(build, arguments(_BATCH_SIZE))
    output_pairs = zip(
        _to_arrays(_compute(layer, arguments(0))), _to_arrays(_compute(layer, arguments(_BATCH_SIZE))), strict=True
    )
    for empty_output, full_output in output_pairs:
        changed_sizes = [m for m, n in zip(empty_output.shape, full_output.shape, strict=True) if m != n]
        message = f"shape {empty_output.shape} for an empty batch, {full_output.shape} for {_BATCH_SIZE} sequences"
        assert changed_sizes in ([], [0]), message


LAYER_CHECKS: tuple[Callable[[Build, Arguments], None], ...] = (
    check_layer_outputs,
    check_layer_config,
    check_layer_files,
    check_layer_masks,
    check_layer_training,
    check_layer_empty_batch,
)
